import pytest
from third_party_parity.analysis import Participation
from third_party_parity.result import Spectrum
from third_party_parity.task import ThirdPartyParity

import pathkernel as pk


def test_task():
    pk.plugins.check_task(ThirdPartyParity())


def test_analysis():
    pk.plugins.check_analysis(Participation())


def test_result():
    pk.plugins.check_result(Spectrum(count=2))


def test_sampler():
    pytest.importorskip("blackjax", reason='samplers need the extra "pathkernel[sampling]"')
    from third_party_parity.sampler import Rescaled

    pk.plugins.check_sampler(Rescaled())
