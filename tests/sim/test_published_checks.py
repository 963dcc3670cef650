"""What counts as equal to a published figure."""

from corral.sim.research.published_checks import OPENB, OPENB_FIRST, SEEDS, compared


def test_one_order_iscompared_with_its_own_figure_and_not_with_the_mean_of_ten():
    first = OPENB_FIRST["GpuPacking"]
    assert abs(first - OPENB["GpuPacking"]) > 0.3  # it would not be near enough to the published mean
    assert compared("GpuPacking", [first]).is_equal
    assert not compared("GpuPacking", [OPENB["GpuPacking"]]).is_equal
    assert not compared("GpuPacking", [first + 0.001]).is_equal


def test_ten_orders_must_have_the_published_mean_and_the_first_one_its_own_figure():
    first, mean = OPENB_FIRST["FGD"], OPENB["FGD"]
    rest = (SEEDS * mean - first) / (SEEDS - 1)
    assert compared("FGD", [first, *[rest] * (SEEDS - 1)]).is_equal
    assert not compared("FGD", [first, *[rest + 0.5] * (SEEDS - 1)]).is_equal
    assert not compared("FGD", [first + 0.01, *[rest] * (SEEDS - 1)]).is_equal
