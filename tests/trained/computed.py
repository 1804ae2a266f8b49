"""Results of studies computed and opened in one go."""

from pathkernel_core.progress import silent
from pathkernel_datasets.stored_study import StoredStudy, run_result
from pathkernel_trained.results import Comparison, Pruning


def compare(store, checkpoint=None):
    return run_result(Comparison(checkpoint), store).result("comparison").to_dataset()


def prune(store, report=silent, **options):
    computed = run_result(Pruning(**options), store, report=report)
    return computed.result("pruning").to_dataset()


def opened(store, name):
    return StoredStudy(store).result(name).to_dataset()
