"""The job document: what a user writes to submit a job, in YAML or JSON, and the spec it becomes.

Light: the YAML library is imported when a file is read. Knows texts and specs, not servers or what exists there.
"""

from corral.wire.document.errors import Fault, path_text
from corral.wire.document.yaml import PlacedFault, TextPlace
from corral.wire.job.document_limits import LIMITS, DocumentLimits
from corral.wire.job.job_files import Note, Parsed, faults_in, is_script, overlaid, read_job_file
from corral.wire.job.parse import DEFAULT_QUEUE, parse_job
from corral.wire.job.sbatch import read_sbatch
from corral.wire.job.schema import job_schema
from corral.wire.job.shorthand import Option, document_of, job_options, option_of
from corral.wire.job.write import write_job

__all__ = [
    "DEFAULT_QUEUE",
    "LIMITS",
    "DocumentLimits",
    "Fault",
    "Note",
    "Option",
    "Parsed",
    "PlacedFault",
    "TextPlace",
    "document_of",
    "faults_in",
    "is_script",
    "job_options",
    "job_schema",
    "option_of",
    "overlaid",
    "parse_job",
    "path_text",
    "read_job_file",
    "read_sbatch",
    "write_job",
]
