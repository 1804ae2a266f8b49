import pytest
from third_party_parity.analysis import Participation
from third_party_parity.result import Spectrum
from third_party_parity.task import ThirdPartyParity

from pathkernel_core.testing import check_task
from pathkernel_datasets.testing import check_analysis, check_result


def test_task():
    check_task(ThirdPartyParity())


def test_analysis():
    check_analysis(Participation())


def test_result():
    check_result(Spectrum(count=2))


def test_sampler():
    pytest.importorskip("blackjax", reason='samplers need the extra "pathkernel[sampling]"')
    from third_party_parity.sampler import Rescaled

    from pathkernel_sampling.testing import check_sampler

    check_sampler(Rescaled())
