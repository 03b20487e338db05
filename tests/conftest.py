"""Settings shared by all tests and the processes they start: offline, one thread each, no plots on a screen."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
# Tests are many small tensors: a second thread costs more in barriers than it saves, and processes compete.
os.environ.setdefault("OMP_NUM_THREADS", "1")
