"""Workers that get copies, for tests of several rooms."""

import pickle
from concurrent.futures import ThreadPoolExecutor


class Pickling(ThreadPoolExecutor):
    """Workers in this process, which get copies as those elsewhere do."""

    def submit(self, function, /, *arguments):
        return super().submit(*pickle.loads(pickle.dumps((function, *arguments))))
