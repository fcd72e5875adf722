//! The messages of a run, in one buffer: Python passes them on as one object, and creates a single message only on access.

use std::collections::HashMap;
use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

use crate::batch::{BatchBuilder, Message};
use crate::murmur2::partition_of;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Messages>()
}

/// A topic's name as a Python string; in an Arc it can be shared without holding Python's lock.
pub struct Topic {
    pub name: Py<PyString>,
}

impl Topic {
    pub fn new(name: &Bound<'_, PyString>) -> Arc<Self> {
        let name = name.clone().unbind();
        Arc::new(Topic { name })
    }
}

/// A sequence of messages: tuples of topic, key and value, which are created on access.
#[pyclass(frozen, sequence, name = "CompiledMessages", module = "cdc._native")]
pub struct Messages {
    pub bytes: Vec<u8>,
    pub messages: Vec<Message>,
    pub topics: Arc<Vec<Arc<Topic>>>,
}

impl Messages {
    /// Take the messages out of a batch, which is empty afterwards.
    pub fn take(batch: &mut BatchBuilder, topics: &Arc<Vec<Arc<Topic>>>) -> Self {
        let (mut bytes, messages) = batch.take();
        if bytes.capacity() > bytes.len() + bytes.len() / 4 {
            bytes.shrink_to_fit(); // the messages may be queued for long
        }
        Messages {
            bytes,
            messages,
            topics: Arc::clone(topics),
        }
    }

    /// Return key and value of a message.
    pub fn parts(&self, message: &Message) -> (&[u8], Option<&[u8]>) {
        let key = &self.bytes[message.key.0..message.key.1];
        let value = message.value.map(|(begin, end)| &self.bytes[begin..end]);
        (key, value)
    }
}

#[pymethods]
impl Messages {
    fn __len__(&self) -> usize {
        self.messages.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyTuple>> {
        let message = self
            .messages
            .get(index)
            .ok_or_else(|| PyIndexError::new_err("no such message"))?;
        let (key, value) = self.parts(message);
        let value = match value {
            Some(value) => PyBytes::new(py, value).into_any(),
            None => py.None().into_bound(py),
        };
        let topic = self.topics[message.topic].name.bind(py).clone().into_any();
        PyTuple::new(py, [topic, PyBytes::new(py, key).into_any(), value])
    }

    /// Return the topics of the messages, each once.
    fn topics(&self, py: Python<'_>) -> Vec<Py<PyString>> {
        let mut found: Vec<usize> = Vec::new();
        for message in &self.messages {
            if found.last() != Some(&message.topic) && !found.contains(&message.topic) {
                found.push(message.topic);
            }
        }
        let name = |topic: usize| self.topics[topic].name.clone_ref(py);
        found.into_iter().map(name).collect()
    }

    /// Return the partitions that receive messages, each once, for the topics in `counts`, which has their numbers of partitions.
    fn places(
        &self,
        py: Python<'_>,
        counts: HashMap<String, u32>,
    ) -> PyResult<Vec<(Py<PyString>, u32)>> {
        let mut known: Vec<Option<Vec<bool>>> = Vec::with_capacity(self.topics.len());
        for topic in self.topics.iter() {
            let count = counts.get(topic.name.bind(py).to_cow()?.as_ref()).copied();
            known.push(count.map(|count| vec![false; count as usize]));
        }
        let mut found = Vec::new();
        for message in &self.messages {
            if let Some(seen) = &mut known[message.topic] {
                let (key, _) = self.parts(message);
                let number = partition_of(key, seen.len() as u32);
                if let Some(seen) = seen.get_mut(number as usize) {
                    if !std::mem::replace(seen, true) {
                        found.push((self.topics[message.topic].name.clone_ref(py), number));
                    }
                }
            }
        }
        Ok(found)
    }
}
