import importlib.util

import pytest
from third_party_parity.analysis import Participation
from third_party_parity.result import Spectrum
from third_party_parity.task import ThirdPartyParity

from pathkernel_core.testing import TaskContract
from pathkernel_datasets.testing import AnalysisContract, ResultContract


class TestThirdPartyParity(TaskContract):
    def task(self):
        return ThirdPartyParity()


class TestParticipation(AnalysisContract):
    def analysis(self):
        return Participation()


class TestSpectrum(ResultContract):
    def result(self):
        return Spectrum(count=2)


if importlib.util.find_spec("blackjax") is None:

    def test_sampler():
        pytest.skip('the sampler needs the extra: pip install "pathkernel[sampling]"')

else:
    from third_party_parity.sampler import Rescaled

    from pathkernel_sampling.testing import SamplerContract

    class TestRescaled(SamplerContract):
        def sampler(self):
            return Rescaled()
