//! Python's interface to limbo.rs.

use pyo3::prelude::*;

use crate::limbo;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Arrivals>()
}

#[pyclass(frozen, module = "cdc._native")]
pub struct Arrivals(pub limbo::Arrivals);

#[pymethods]
impl Arrivals {
    /// Make arrivals without CONFIRMs: `lsns` and `starts` of the synchronous transactions, and the `end` of all.
    #[new]
    fn new(lsns: Vec<u64>, starts: Vec<usize>, end: usize) -> Self {
        Arrivals(limbo::Arrivals {
            lsns,
            starts,
            end,
            ..limbo::Arrivals::default()
        })
    }

    /// Return the arrivals from row `start` on, as if this were the first row.
    fn after(&self, start: usize) -> Self {
        Arrivals(self.0.after(start))
    }

    #[getter]
    fn end(&self) -> usize {
        self.0.end
    }

    #[getter]
    fn confirmed(&self) -> u64 {
        self.0.confirmed
    }

    /// Lsns of the synchronous transactions.
    #[getter]
    fn lsns(&self) -> Vec<u64> {
        self.0.lsns.clone()
    }

    /// Lsn of the last synchronous transaction; 0 if there is none.
    #[getter]
    fn last_lsn(&self) -> u64 {
        self.0.lsns.last().copied().unwrap_or(0)
    }

    /// Return the lsn of the first synchronous transaction from row `at` on; 0 if there is none.
    fn first_lsn(&self, at: usize) -> u64 {
        let count = self.0.starts.partition_point(|start| *start < at);
        self.0.lsns.get(count).copied().unwrap_or(0)
    }

    /// See limbo.rs.
    fn plain_until(&self, at: usize) -> usize {
        self.0.plain_until(at)
    }

    /// See limbo.rs.
    fn certain_until(&self, confirmed: u64) -> (usize, u64) {
        self.0.certain_until(confirmed)
    }
}
