"""One experiment: image archives, episodes, the task, and training by gradient descent.

It imports tasks, views and ``pathkernel_trained``. Begin with :mod:`pathkernel_one_shot.task`.
"""
