"""One experiment in one place: image archives, episodes, the task, and training by descent."""
