from third_party_parity.task import ThirdPartyParity

from pathkernel_core.testing import TaskContract


class TestThirdPartyParity(TaskContract):
    def task(self):
        return ThirdPartyParity()
