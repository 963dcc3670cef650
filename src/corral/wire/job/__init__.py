"""The job document: what a user writes to submit work, in YAML or JSON, and what becomes of it.

Light: what reads YAML is loaded when a file is read. Knows texts and specs; nothing of servers or of what exists.
"""

from corral.wire.document.faults import Fault, path_text
from corral.wire.document.yaml import Place, PlacedFault
from corral.wire.job.files import Note, Parsed, faults_in, is_script, overlaid, read_job_file
from corral.wire.job.limits import LIMITS, Limits
from corral.wire.job.parse import DEFAULT_QUEUE, parse_job
from corral.wire.job.schema import job_schema
from corral.wire.job.write import write_job

__all__ = [
    "DEFAULT_QUEUE",
    "LIMITS",
    "Fault",
    "Limits",
    "Note",
    "Parsed",
    "Place",
    "PlacedFault",
    "faults_in",
    "is_script",
    "job_schema",
    "overlaid",
    "parse_job",
    "path_text",
    "read_job_file",
    "write_job",
]
