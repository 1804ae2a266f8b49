"""Names of ``pathkernel.views`` for editors, by docs/generate_names.py."""

from pathkernel_views.chart import Chart as Chart
from pathkernel_views.chart import NothingToPlot as NothingToPlot
from pathkernel_views.chart import save_charts as save_charts
from pathkernel_views.console import stdout_console as stdout_console
from pathkernel_views.primitives import bars as bars
from pathkernel_views.primitives import heatmaps as heatmaps
from pathkernel_views.primitives import lines as lines
from pathkernel_views.primitives import points as points
from pathkernel_views.study_views import study_views as study_views
from pathkernel_views.table import Table as Table
from pathkernel_views.table import frame_of as frame_of
from pathkernel_views.table import labelled_frame as labelled_frame
