"""Tables: frames of pandas, frames by their contract alone, CSV files; targets of every kind; what is refused."""

from typing import Any

import numpy as np
import pandas
import pytest
import torch

from pyro_bnn.data import Split, as_split, from_frame, load_data, read_csv
from pyro_bnn.data.arrays import as_inputs, as_tensor, pieces

N = 60
RANDOM = np.random.default_rng(0)
AREA, AGE = RANDOM.normal(100, 20, N), RANDOM.integers(0, 80, N)
PRICE = (3 * AREA - AGE + RANDOM.normal(size=N)).round(3)
KIND = np.array(["house", "flat", "hut"], dtype=object)[np.arange(N) % 3]
FRAME = pandas.DataFrame({"area": AREA, "age": AGE, "kind": KIND, "price": PRICE, "sold": AGE > 40})
NUMBERS = FRAME[["area", "age", "price"]]


class Column:
    """A column as polars has it: `to_numpy` and a dtype, and not much else."""

    def __init__(self, values: Any, dtype: str = "") -> None:
        self.values, self.dtype = values, dtype

    def to_numpy(self) -> Any:
        return self.values


class Frame:
    """A frame by the contract alone."""

    def __init__(self, **columns: Any) -> None:
        self.held = {name: v if isinstance(v, Column) else Column(v) for name, v in columns.items()}

    @property
    def columns(self) -> list[str]:
        return list(self.held)

    def __getitem__(self, name: str) -> Column:
        return self.held[name]

    def to_numpy(self) -> Any:
        return np.stack([c.values for c in self.held.values()], 1)


# -- from_frame ------------------------------------------------------------------------------------------------------


def test_numbers_become_float32_rows_that_know_their_columns() -> None:
    rows = from_frame(NUMBERS, target="price")
    assert torch.equal(rows.x, torch.tensor(np.stack([AREA, AGE], 1), dtype=torch.float32))
    assert torch.equal(rows.y, torch.tensor(PRICE, dtype=torch.float32))
    assert (rows.columns, rows.class_names, rows.weights) == (("area", "age"), None, None)
    assert rows.take(torch.tensor([3])).to("cpu").columns == ("area", "age")
    other = from_frame(Frame(area=AREA, age=AGE, price=PRICE), target="price")
    assert torch.equal(other.x, rows.x)


def test_features_weights_and_several_targets() -> None:
    rows = from_frame(FRAME, target=["price", "area"], features=["sold"], weights="age")
    assert torch.equal(rows.x[:, 0], torch.tensor(AGE > 40).float())
    assert torch.equal(rows.y, torch.tensor(np.stack([PRICE, AREA], 1), dtype=torch.float32))
    assert torch.equal(rows.weights, torch.tensor(AGE, dtype=torch.float32))


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (KIND, ("flat", "house", "hut")),
        (pandas.Series(KIND, dtype="category"), ("flat", "house", "hut")),
        (pandas.Series(np.arange(N) % 3 + 7, dtype="category"), ("7", "8", "9")),
        (AGE > 40, ("False", "True")),
    ],
)
def test_categories_are_classes(values: Any, names: tuple[str, ...]) -> None:
    rows = from_frame(FRAME[["area"]].assign(target=values), target="target")
    assert rows.class_names == names
    assert rows.y.dtype == torch.int64
    assert [names[k] for k in rows.y] == [str(v) for v in values]


def test_whole_numbers_are_asked_about_if_they_are_few() -> None:
    quality = FRAME[["area"]].assign(quality=np.arange(N) % 4 + 3)
    with pytest.raises(ValueError, match=r"'quality' holds 4 different whole numbers.*task='classification' or"):
        from_frame(quality, target="quality")
    assert from_frame(quality, target="quality", task="regression").y.dtype == torch.float32
    rows = from_frame(quality, target="quality", task="classification")
    assert rows.class_names == ("3", "4", "5", "6")
    assert rows.y.tolist() == [k % 4 for k in range(N)]
    assert from_frame(FRAME[["area", "age"]], target="age").y.dtype == torch.float32  # more than 20 of them


@pytest.mark.parametrize("dtype", ["Int64", "Float64", "Int32"])
def test_nullable_columns_and_missing_targets(dtype: str) -> None:
    whole = pandas.Series(AGE, dtype=dtype)
    gaps = whole.copy()
    gaps[3] = pandas.NA
    assert torch.equal(from_frame(NUMBERS.assign(age=whole), "price").x, from_frame(NUMBERS, "price").x)
    rows = from_frame(NUMBERS.assign(price=gaps), "price")
    assert rows.y.isnan().nonzero()[:, 0].tolist() == [3]
    with pytest.raises(ValueError, match=r"column 'age' holds missing .* 1 of 60 rows \(first: row 3\)"):
        from_frame(NUMBERS.assign(age=gaps), "price")


@pytest.mark.parametrize(
    ("frame", "options", "error", "message"),
    [
        (FRAME, {"target": "price"}, TypeError, r"column 'kind' holds text .*row 0 is 'house'.*encode it"),
        (FRAME.astype({"kind": "string"}), {"target": "price"}, TypeError, "column 'kind' holds text"),
        (FRAME, {"target": "prize"}, ValueError, "no column 'prize'; did you mean 'price'"),
        (FRAME, {"target": "price", "features": ["price"]}, ValueError, "'price' is among the features"),
        (FRAME[["price"]], {"target": "price"}, ValueError, "there is no input"),
        (FRAME[:0], {"target": "price"}, ValueError, "no rows"),
        (pandas.concat([NUMBERS, NUMBERS], axis=1), {"target": "price"}, ValueError, "more than one column 'age'"),
        (NUMBERS.assign(day=pandas.Timestamp("2020")), {"target": "price"}, TypeError, "'day' holds dates or times"),
        (NUMBERS, {"target": "price", "weights": "price"}, ValueError, "'price' cannot be two of targets and weights"),
        (FRAME, {"target": "kind", "task": "regression"}, TypeError, "'kind' holds text"),
        (FRAME[["area", "sold"]], {"target": "sold", "task": "regression"}, ValueError, "categories, not numbers"),
        (NUMBERS, {"target": "price", "task": "ranking"}, ValueError, "task is 'ranking'"),
        (NUMBERS, {"target": ["price", "age"], "task": "classification"}, ValueError, "one target column, not 2"),
        (NUMBERS, {"target": []}, ValueError, "target is empty"),
        (NUMBERS.to_numpy(), {"target": "price"}, TypeError, "is a ndarray; give a frame"),
        (FRAME[["area"]].assign(k=[None, *KIND[1:]]), {"target": "k"}, ValueError, r"no class in 1 of 60 rows"),
    ],
)
def test_what_is_refused(frame: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        from_frame(frame, **options)
    assert "\n" not in str(caught.value)


# -- frames as parts of data -----------------------------------------------------------------------------------------


def test_frames_and_series_are_parts_of_data() -> None:
    for x, y in ((NUMBERS[["area", "age"]], NUMBERS["price"]), (NUMBERS[["area", "age"]], NUMBERS[["price"]])):
        rows = as_split((x, y))
        assert rows.x.dtype == torch.float32
        assert torch.equal(rows.x, from_frame(NUMBERS, "price").x)
        assert torch.equal(rows.y.float(), torch.tensor(PRICE, dtype=torch.float32))
    assert torch.equal(as_split((Frame(a=AREA), Column(AGE))).y, torch.tensor(AGE))
    with pytest.raises(TypeError, match=r"column 'kind' of x holds text"):
        as_split((FRAME, PRICE))
    with pytest.raises(TypeError, match=r"y holds text or objects \(row 0 is 'house'\)"):
        as_split((NUMBERS, FRAME["kind"]))


def test_arrays_of_every_make() -> None:
    values = np.arange(6.0)
    masked = np.ma.masked_greater(values, 4)
    assert as_tensor(masked, "y").isnan().tolist() == [False] * 5 + [True]
    assert as_tensor(values[::-1], "y").tolist() == values[::-1].tolist()
    assert as_tensor(values.astype(">f4"), "y").dtype == torch.float32
    assert as_tensor(values.astype(np.longdouble), "y").dtype == torch.float64
    assert as_tensor(np.array([1, None, 2], dtype=object), "y")[1].isnan()
    assert as_tensor(np.array([1, 2], dtype=object), "y").dtype == torch.int64
    assert as_tensor(values, "y", torch.float32).dtype == torch.float32
    for bad, message in (
        (np.array(["a"]), "holds <U1"),
        (np.array(["2020"], dtype="M8[Y]"), "dates or times"),
        (np.array([1j]), "complex"),
        (np.array([object()]), "text or objects"),
    ):
        with pytest.raises(TypeError, match=message):
            as_tensor(bad, "y")


def test_several_inputs_stay_together() -> None:
    x = as_inputs([np.arange(5), torch.arange(10.0).reshape(5, 2)])
    assert isinstance(x, tuple)
    assert [[len(m) for m in part] for part in pieces(x, 2)] == [[2, 2], [2, 2], [1, 1]]
    rows = Split(x, torch.arange(5)).take(torch.tensor([4, 0])).to("cpu")
    assert rows.x[0].tolist() == [4, 0]
    assert rows.x[1].tolist() == [[8.0, 9.0], [0.0, 1.0]]
    assert len(rows) == 2
    with pytest.raises(ValueError, match="x has 5 rows and y has 4"):
        Split(x, torch.arange(4))
    with pytest.raises(ValueError, match="first dimension"):
        Split((), torch.arange(4))


# -- CSV -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("suffix", "sep"), [("csv", ","), ("csv", ";"), ("csv", "|"), ("tsv", "\t")])
def test_a_csv_is_the_frame_that_it_was_written_from(suffix: str, sep: str, tmp_path: Any) -> None:
    path = tmp_path / f"houses.{suffix}"
    FRAME.to_csv(path, index=False, sep=sep)
    for target, options in (("price", {"features": ["age", "area"]}), ("kind", {"features": ["age", "area"]})):
        rows, wanted = read_csv(path, target, **options), from_frame(FRAME, target, **options)
        assert torch.equal(rows.x, wanted.x)
        assert torch.equal(rows.y, wanted.y)
        assert (rows.columns, rows.class_names) == (wanted.columns, wanted.class_names)


def test_gaps_in_a_csv(tmp_path: Any) -> None:
    path = tmp_path / "gaps.csv"
    path.write_text('\ufeffa, b ,"c, d"\r\n1.5,x,2\r\n\r\n2.5,,NA\r\n')
    rows = read_csv(path, "c, d", features=["a"], task="regression")
    assert rows.x.tolist() == [[1.5], [2.5]]
    assert rows.y.isnan().tolist() == [False, True]
    with pytest.raises(ValueError, match="no class in 1 of 2 rows"):
        read_csv(path, "b", features=["a"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("1,2\n3,4\n", "'1' for the name of its column 0; its first line names the columns"),
        ("a,a\n3,4\n", "more than one column 'a'"),
        ("a,b\n1,2\n3\n", r"row 1 has 1 values and the first line 2 names"),
        ("a,b\n", "no rows"),
        ("a,b\nx,2\ny,3\n", "column 'a' holds text"),
        ("a,b\nx_1,2\n1_0,3\n", "column 'a' holds text"),
    ],
)
def test_a_broken_csv_is_refused(text: str, message: str, tmp_path: Any) -> None:
    path = tmp_path / "broken.csv"
    path.write_text(text)
    with pytest.raises((ValueError, TypeError), match=message):
        read_csv(path, "b", task="regression")
    path.write_bytes(b"a,b\n\xff\xfe,1\n")
    with pytest.raises(ValueError, match="cannot be read as CSV"):
        read_csv(path, "b")
    with pytest.raises(FileNotFoundError, match=r"no data file .*nowhere\.csv"):
        read_csv(tmp_path / "nowhere.csv", "b")


# -- load_data -------------------------------------------------------------------------------------------------------


def test_load_data_divides_and_standardises_a_table(tmp_path: Any) -> None:
    path = tmp_path / "houses.csv"
    NUMBERS.to_csv(path, index=False)
    data = load_data(path, target="price", val_fraction=0.25)
    assert (data.name, data.task, data.num_outputs) == ("houses", "regression", 1)
    assert [len(data.train), len(data.val or ()), len(data.test)] == [36, 12, 12]
    assert data.train.columns == ("area", "age")
    assert data.standardiser is not None
    assert data.y_standardiser is not None
    assert float(data.train.x.mean()) == pytest.approx(0, abs=1e-6)
    back = torch.cat([data.y_standardiser.invert(part.y) for part in (data.train, data.val, data.test) if part])
    torch.testing.assert_close(back.double().sort().values, torch.tensor(PRICE).sort().values, rtol=1e-5, atol=1e-3)
    raw = {s: load_data(path, target="price", split=s, standardise=False, seed=s).test.y for s in (0, 1)}
    assert torch.equal(raw[0], load_data(path, target="price", standardise=False, seed=9).test.y)
    assert not torch.equal(raw[0], raw[1])


def test_load_data_takes_frames_and_keeps_every_class_in_training() -> None:
    rare = FRAME[["area", "age"]].assign(kind=["a"] * 50 + ["b"] * 9 + ["c"])
    data = load_data(rare, target="kind", test_fraction=0.5)
    assert data.class_names == ("a", "b", "c")
    assert data.train.y.bincount(minlength=3).tolist()[2] == 1
    assert len(data.test) == 30
    weighted = load_data(NUMBERS, target="price", weights="age")
    assert weighted.train.weights is not None
    assert weighted.train.x.shape[1] == 1


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ("toy-line", {"target": "y"}, "target='y' is for tables"),
        ("toy-line", {"test_fraction": 0.5}, "test_fraction=0.5 is for tables"),
        (NUMBERS, {}, "the frame needs target=, the column to predict; it has area, age, price"),
        (
            NUMBERS,
            {"target": "price", "test_fraction": 1.0},
            r"test_fraction is 1.0; give a share of the rows in \(0, 1\)",
        ),
        (NUMBERS, {"target": "price", "test_fraction": 0.001}, "test needs at least 1 row"),
        (NUMBERS.assign(price=[np.nan, *PRICE[1:]]), {"target": "price"}, "y_(train|test) holds NaN"),
    ],
)
def test_load_data_refuses(data: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_data(data, **options)
