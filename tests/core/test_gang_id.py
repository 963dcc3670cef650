"""The id of a gang."""

import pytest

from corral.core.gang_id import element_of, gang_id, index_of, job_of, role_of


@pytest.mark.parametrize(
    ("gang", "job", "element", "role", "index"),
    [
        ("17/main", "17", "17", "main", None),
        ("17[3]/trainer", "17", "17[3]", "trainer", 3),
        ("a/b/main", "a/b", "a/b", "main", None),
    ],
)
def test_the_id_of_a_gang_names_its_job_element_role_and_index(gang, job, element, role, index):
    assert gang_id(job, role, index) == gang
    assert (job_of(gang), element_of(gang), role_of(gang), index_of(gang)) == (job, element, role, index)
