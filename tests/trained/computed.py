"""Results of studies computed and opened in one go."""

from pathkernel_core.system.progress import silent
from pathkernel_datasets.results.run_result import run_result
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_trained.results import Comparison, Pruning


def compare(study, checkpoint=None):
    return run_result(Comparison(checkpoint), study).result("comparison").to_dataset()


def prune(study, report=silent, **options):
    computed = run_result(Pruning(**options), study, report=report)
    return computed.result("pruning").to_dataset()


def opened(study, name):
    return StoredStudy(study).result(name).to_dataset()
