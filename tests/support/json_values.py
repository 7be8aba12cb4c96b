"""JSON values to generate."""

from __future__ import annotations

from hypothesis import strategies as st

# Text without half surrogate pairs and integers of 64 bits: what a strict reader takes.
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=20)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner)
    ),
    max_leaves=20,
)
