"""Many updates to one."""

from fedlag.aggregate.aggregator import Aggregator, Mean
from fedlag.aggregate.cagrad import CAGrad
from fedlag.aggregate.extrapolated import Extrapolated
from fedlag.aggregate.graddrop import GradDrop
from fedlag.aggregate.median import Median
from fedlag.aggregate.multikrum import MultiKrum
from fedlag.aggregate.nova import Nova
from fedlag.aggregate.pcgrad import PCGrad
from fedlag.aggregate.reported import Reported
from fedlag.aggregate.trimmed_mean import TrimmedMean

__all__ = [
    "Aggregator",
    "CAGrad",
    "Extrapolated",
    "GradDrop",
    "Mean",
    "Median",
    "MultiKrum",
    "Nova",
    "PCGrad",
    "Reported",
    "TrimmedMean",
]
