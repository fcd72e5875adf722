//! Batches of messages for librdkafka through its C interface: one call for many messages, without holding Python's lock.
//!
//! The producer is confluent_kafka's, which creates, polls and closes it; only the bulk of the messages bypasses Python.
//! librdkafka itself passes the producer to this module, which is one of its plug-ins (`plugin.library.paths`): it notifies a
//! plug-in of each client that is created with it, and of the client's end. It also chooses partitions, as for all messages.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::python_frames::without_lock;
use crate::python_messages::Messages;

/// Maximum number of messages in one call.
const CALL_COUNT: usize = 512;
const NAME: &CStr = c"tarantool-cdc";

const UNASSIGNED: i32 = -1;
const COPY: c_int = 0x2;
const QUEUE_FULL: c_int = -184;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ProducerHandle>()
}

extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

const RTLD_NOW: c_int = 2;

/// `rd_kafka_message_t`.
#[repr(C)]
struct Message {
    error: c_int,
    topic: *mut c_void,
    partition: i32,
    payload: *mut c_void,
    payload_len: usize,
    key: *mut c_void,
    key_len: usize,
    offset: i64,
    private: *mut c_void,
}

type OnNew =
    unsafe extern "C" fn(*mut c_void, *const c_void, *mut c_void, *mut c_char, usize) -> c_int;
type OnDestroy = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;

type AddOnNew = unsafe extern "C" fn(*mut c_void, *const c_char, OnNew, *mut c_void) -> c_int;
type AddOnDestroy =
    unsafe extern "C" fn(*mut c_void, *const c_char, OnDestroy, *mut c_void) -> c_int;
type ConfNew = unsafe extern "C" fn() -> *mut c_void;
type ConfSet =
    unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char, *mut c_char, usize) -> c_int;
type ConfDestroy = unsafe extern "C" fn(*mut c_void);
type TopicNew = unsafe extern "C" fn(*mut c_void, *const c_char, *mut c_void) -> *mut c_void;
type TopicDestroy = unsafe extern "C" fn(*mut c_void);
type ProduceBatch = unsafe extern "C" fn(*mut c_void, i32, c_int, *mut Message, c_int) -> c_int;

/// The functions of librdkafka that this module uses.
struct Library {
    add_on_new: AddOnNew,
    add_on_destroy: AddOnDestroy,
    conf_new: ConfNew,
    conf_set: ConfSet,
    conf_destroy: ConfDestroy,
    topic_new: TopicNew,
    topic_destroy: TopicDestroy,
    produce_batch: ProduceBatch,
}

static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();

impl Library {
    /// Find the librdkafka that the module at `path` is linked with.
    fn find(path: &CStr) -> Option<Self> {
        // SAFETY: the library is already loaded, because Python has imported it. These functions belong to its public interface,
        // and none has changed since it was introduced.
        unsafe {
            let library = dlopen(path.as_ptr(), RTLD_NOW);
            if library.is_null() {
                return None;
            }
            let find = |name: &CStr| {
                let found = dlsym(library, name.as_ptr());
                (!found.is_null()).then_some(found)
            };
            Some(Library {
                add_on_new: transmute::<*mut c_void, AddOnNew>(find(
                    c"rd_kafka_conf_interceptor_add_on_new",
                )?),
                add_on_destroy: transmute::<*mut c_void, AddOnDestroy>(find(
                    c"rd_kafka_interceptor_add_on_destroy",
                )?),
                conf_new: transmute::<*mut c_void, ConfNew>(find(c"rd_kafka_conf_new")?),
                conf_set: transmute::<*mut c_void, ConfSet>(find(c"rd_kafka_conf_set")?),
                conf_destroy: transmute::<*mut c_void, ConfDestroy>(find(
                    c"rd_kafka_conf_destroy",
                )?),
                topic_new: transmute::<*mut c_void, TopicNew>(find(c"rd_kafka_topic_new")?),
                topic_destroy: transmute::<*mut c_void, TopicDestroy>(find(
                    c"rd_kafka_topic_destroy",
                )?),
                produce_batch: transmute::<*mut c_void, ProduceBatch>(find(
                    c"rd_kafka_produce_batch",
                )?),
            })
        }
    }

    /// Return whether librdkafka accepts this plug-in.
    fn takes(&self, path: &CStr) -> bool {
        let mut reason = [0; 256];
        // SAFETY: the configuration is created here, and not shared.
        unsafe {
            let conf = (self.conf_new)();
            let answer = (self.conf_set)(
                conf,
                c"plugin.library.paths".as_ptr(),
                path.as_ptr(),
                reason.as_mut_ptr(),
                reason.len(),
            );
            (self.conf_destroy)(conf);
            answer == 0
        }
    }

    fn get() -> Option<&'static Library> {
        LIBRARY.get()?.as_ref()
    }
}

/// A producer of librdkafka; null once it was destroyed.
struct Handle(*mut c_void);

// SAFETY: any thread may use librdkafka's clients.
unsafe impl Send for Handle {}

type Shared = Mutex<Handle>;

thread_local! {
    /// Handle of the client that this thread created last.
    static NEWEST: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
}

/// The plug-in's function that librdkafka calls for each client that is configured with it.
#[no_mangle]
pub extern "C" fn conf_init(
    conf: *mut c_void,
    _: *mut *mut c_void,
    _: *mut c_char,
    _: usize,
) -> c_int {
    // SAFETY: librdkafka passes its own configuration.
    Library::get().map_or(0, |library| unsafe {
        (library.add_on_new)(conf, NAME.as_ptr(), on_new, null_mut())
    })
}

unsafe extern "C" fn on_new(
    client: *mut c_void,
    _: *const c_void,
    _: *mut c_void,
    _: *mut c_char,
    _: usize,
) -> c_int {
    let Some(library) = Library::get() else {
        return 0;
    };
    let handle = Arc::new(Mutex::new(Handle(client)));
    let kept = Arc::into_raw(Arc::clone(&handle));
    // SAFETY: `on_destroy` is called once, and releases the reference that is kept for it here.
    let error =
        unsafe { (library.add_on_destroy)(client, NAME.as_ptr(), on_destroy, kept as *mut c_void) };
    if error == 0 {
        NEWEST.with(|newest| newest.replace(Some(handle)));
    } else {
        // SAFETY: the reference wasn't passed on.
        drop(unsafe { Arc::from_raw(kept) });
    }
    0
}

unsafe extern "C" fn on_destroy(_: *mut c_void, kept: *mut c_void) -> c_int {
    // SAFETY: this is the reference that `on_new` kept.
    let handle = unsafe { Arc::from_raw(kept as *const Shared) };
    handle
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .0 = null_mut();
    0
}

/// Consecutive messages of one topic.
#[derive(Default)]
struct Stretch {
    topic: CString,
    messages: Vec<Message>,
}

// SAFETY: the pointers refer to bytes that Python keeps alive while they are used.
unsafe impl Send for Stretch {}

/// A producer for batches of messages.
#[pyclass(frozen, module = "cdc._native")]
struct ProducerHandle {
    handle: Arc<Shared>,
}

#[pymethods]
impl ProducerHandle {
    /// Use the librdkafka that the module at `client` is linked with; return whether it accepts this module (the file `own`) as
    /// a plug-in. librdkafka may have been built without plug-ins.
    #[staticmethod]
    fn bind(client: &str, own: &str) -> bool {
        let find = || Library::find(&CString::new(client).ok()?);
        let library = LIBRARY.get_or_init(find).as_ref();
        library.is_some_and(|library| CString::new(own).is_ok_and(|own| library.takes(&own)))
    }

    /// Return the newest client that this thread created with this module as a plug-in; None if it was returned before.
    #[staticmethod]
    fn newest() -> Option<Self> {
        NEWEST
            .with(|newest| newest.take())
            .map(|handle| ProducerHandle { handle })
    }

    /// Produce from message `within` of part `start` on; a part is a message or a `Messages`. Return the part and message at
    /// which this call stopped, and an error code.
    ///
    /// The call stops at a part of another type, or at a message that the producer didn't accept. The error code is 0, unless the
    /// producer accepted messages after the refused one. The list must not be changed during the call.
    fn produce(
        &self,
        py: Python<'_>,
        parts: &Bound<'_, PyList>,
        start: usize,
        within: usize,
    ) -> PyResult<(usize, usize, c_int)> {
        let mut at = Place { start, within };
        while at.start < parts.len() {
            let mut stretch = Stretch::default();
            let ends = stretch.collect(parts, at)?;
            if stretch.messages.is_empty() {
                match ends.last() {
                    Some(end) => at = *end, // an empty part
                    None => break,
                }
                continue;
            }
            let count = stretch.messages.len();
            let (taken, error) = without_lock(py, || self.hand_over(&mut stretch))?
                .ok_or_else(|| PyRuntimeError::new_err("the producer has ended"))?;
            at = at.behind(&ends, taken);
            if error != 0 || taken < count {
                return Ok((at.start, at.within, error));
            }
        }
        Ok((at.start, at.within, 0))
    }
}

/// Place of a message: its part, and its index in that part.
#[derive(Clone, Copy)]
struct Place {
    start: usize,
    within: usize,
}

impl Place {
    /// Return the place after `count` messages; `ends` are the places after each message.
    fn behind(self, ends: &[Place], count: usize) -> Self {
        count.checked_sub(1).map_or(self, |last| ends[last])
    }
}

impl Stretch {
    /// Collect the next messages of one topic, and return the place after each. If the next part is neither a message nor a
    /// `Messages`, nothing is collected or returned. If it is an empty `Messages`, only the place after it is returned.
    fn collect(&mut self, parts: &Bound<'_, PyList>, at: Place) -> PyResult<Vec<Place>> {
        let mut ends = Vec::with_capacity(CALL_COUNT);
        let mut topic: Option<Bound<'_, PyString>> = None;
        let mut within = at.within;
        for start in at.start..parts.len() {
            let part = parts.get_item(start)?;
            if let Ok(message) = part.cast::<PyTuple>() {
                let its = message.get_item(0)?.cast_into::<PyString>()?;
                if !self.is_of(&mut topic, &its)? {
                    break;
                }
                self.add(bytes(&message.get_item(1)?)?, bytes(&message.get_item(2)?)?);
                ends.push(Place {
                    start: start + 1,
                    within: 0,
                });
            } else if let Ok(messages) = part.cast::<Messages>() {
                let messages = messages.get();
                let all = &messages.messages;
                let mut known = usize::MAX;
                for message in all.get(within..).unwrap_or(&[]) {
                    if message.topic != known {
                        let name = messages.topics[message.topic].name.bind(parts.py());
                        if !self.is_of(&mut topic, name)? {
                            return Ok(ends);
                        }
                        known = message.topic;
                    }
                    let (key, value) = messages.parts(message);
                    self.add(place_of(Some(key)), place_of(value));
                    within += 1;
                    ends.push(if within < all.len() {
                        Place { start, within }
                    } else {
                        Place {
                            start: start + 1,
                            within: 0,
                        }
                    });
                    if self.messages.len() >= CALL_COUNT {
                        return Ok(ends);
                    }
                }
                if self.messages.is_empty() {
                    ends.push(Place {
                        start: start + 1,
                        within: 0,
                    });
                    return Ok(ends);
                }
            } else {
                break;
            }
            within = 0;
            if self.messages.len() >= CALL_COUNT {
                break;
            }
        }
        Ok(ends)
    }

    /// Return whether a topic is that of the stretch; the first message determines it.
    fn is_of<'py>(
        &mut self,
        known: &mut Option<Bound<'py, PyString>>,
        topic: &Bound<'py, PyString>,
    ) -> PyResult<bool> {
        if let Some(known) = known {
            return Ok(known.is(topic) || known.as_any().eq(topic)?);
        }
        self.topic = CString::new(topic.to_cow()?.as_bytes())?;
        *known = Some(topic.clone());
        Ok(true)
    }

    fn add(&mut self, key: (*mut c_void, usize), payload: (*mut c_void, usize)) {
        self.messages.push(Message {
            error: 0,
            topic: null_mut(),
            partition: UNASSIGNED,
            payload: payload.0,
            payload_len: payload.1,
            key: key.0,
            key_len: key.1,
            offset: 0,
            private: null_mut(),
        });
    }
}

fn place_of(bytes: Option<&[u8]>) -> (*mut c_void, usize) {
    bytes.map_or((null_mut(), 0), |bytes| {
        (bytes.as_ptr() as *mut c_void, bytes.len())
    })
}

/// Return the address and size of Python bytes; null for None.
fn bytes(value: &Bound<'_, PyAny>) -> PyResult<(*mut c_void, usize)> {
    if value.is_none() {
        return Ok(place_of(None));
    }
    Ok(place_of(Some(value.cast::<PyBytes>()?.as_bytes())))
}

impl ProducerHandle {
    /// Produce the messages; return as `outcome`, None if the producer has ended.
    fn hand_over(&self, stretch: &mut Stretch) -> Option<(usize, c_int)> {
        let library = Library::get()?;
        // Hold the lock during the call, so that the producer isn't destroyed meanwhile.
        let handle = self
            .handle
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if handle.0.is_null() {
            return None;
        }
        // SAFETY: the client is alive, the topic is released, and librdkafka copies the messages' keys and values.
        let good = unsafe {
            let topic = (library.topic_new)(handle.0, stretch.topic.as_ptr(), null_mut());
            if topic.is_null() {
                return Some((0, 0));
            }
            let count = stretch.messages.len() as c_int; // at most CALL_COUNT
            let good = (library.produce_batch)(
                topic,
                UNASSIGNED,
                COPY,
                stretch.messages.as_mut_ptr(),
                count,
            );
            (library.topic_destroy)(topic);
            good.max(0) as usize
        };
        Some(outcome(
            stretch.messages.iter().map(|message| message.error),
            good,
        ))
    }
}

/// Return the number of messages accepted before the first error, and its code if later messages were accepted, else 0.
fn outcome(mut errors: impl Iterator<Item = c_int>, good: usize) -> (usize, c_int) {
    let mut count = 0;
    let first = errors.find(|error| {
        count += usize::from(*error == 0);
        *error != 0
    });
    match first {
        // Once its queue is full, librdkafka accepts no more messages in the same call.
        Some(error) if good > count && error != QUEUE_FULL => (count, error),
        _ => (count, 0),
    }
}
