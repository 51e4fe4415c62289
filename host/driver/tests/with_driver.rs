//! On a machine with a GPU: the forwarders beneath `cust` and the calls beside it reach the real driver.
//!
//! Elsewhere nothing is run, which `REQUIRE=cuda` turns into a failure.

use std::ffi::c_void;
use std::io::Write;
use std::time::Instant;

use cust::context::Context;
use cust::device::Device;
use cust::error::CudaError;
use cust::memory::{CopyDestination, DeviceBuffer};
use ferroflash_driver::extra::function::{self, FunctionAttribute, LaunchSize};
use ferroflash_driver::extra::module::{self, Image};
use ferroflash_driver::extra::{context, device, event, graph, stream};
use ferroflash_driver::sys::{CUfunction, CUmodule};
use ferroflash_driver::{Driver, DriverError, Version, driver_present, last_failure};

/// Stores `value + index` of the block at `to[index of the block]`, through dynamic shared memory.
const STORE: &std::ffi::CStr = c"
.version 7.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 shared[];
.visible .entry store(.param .align 8 .b8 store_param_0[16]) {
    .reg .b32 %r<5>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [store_param_0];
    ld.param.u32 %r1, [store_param_0+8];
    mov.u32 %r2, %ctaid.x;
    add.u32 %r3, %r1, %r2;
    st.shared.u32 [shared], %r3;
    ld.shared.u32 %r4, [shared];
    cvta.to.global.u64 %rd2, %rd1;
    mad.wide.u32 %rd3, %r2, 4, %rd2;
    st.global.u32 [%rd3], %r4;
    ret;
}
";

/// The parameter of the kernel above.
#[repr(C)]
#[derive(Clone, Copy)]
struct Store {
    to: u64,
    value: u32,
}

/// A context of the first device, current in this thread; `None`, said aloud, on a machine without a GPU.
fn gpu() -> Option<Context> {
    let device = cust::init(cust::CudaFlags::empty()).and_then(|()| Device::get_device(0));
    match device {
        Ok(device) => Some(Context::new(device).expect("the device's context")),
        Err(_) => {
            let error = DriverError::from(last_failure().expect("a call that failed"));
            // Not by a macro, whose text the harness keeps back; at once, so that lines stay whole.
            let line = format!("[not run] cuda: {error}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            let required = std::env::var("REQUIRE")
                .is_ok_and(|names| names.split(',').any(|name| name == "cuda"));
            assert!(!required, "REQUIRE names cuda, which cannot run: {error}");
            None
        }
    }
}

fn load() -> (CUmodule, CUfunction) {
    // SAFETY: `gpu` made a context current; the module is not unloaded before the process ends.
    unsafe {
        let (module, _) = module::load(Image::Ptx(STORE)).expect("the kernel compiles");
        (
            module,
            module::function(module, c"store").expect("the kernel's name"),
        )
    }
}

#[test]
fn a_kernel_runs_with_its_parameters_in_one_struct() {
    let Some(_context) = gpu() else { return };
    let (_, store) = load();
    let to = DeviceBuffer::<u32>::zeroed(100).unwrap();
    let params = Store {
        to: to.as_device_ptr().as_raw(),
        value: 7,
    };
    let mut found = vec![0_u32; 100];
    // SAFETY: the kernel takes a `Store` and writes one word a block; the copy is waited for.
    unsafe {
        let on = stream::create().unwrap();
        let size = LaunchSize {
            grid: 100,
            threads: 1,
            shared_bytes: 16,
        };
        function::launch(store, size, on, &params).unwrap();
        stream::copy_to_host(found.as_mut_ptr().cast::<c_void>(), params.to, 400, on).unwrap();
        stream::synchronize(on).unwrap();
        assert_eq!(stream::context(on).unwrap(), context::current().unwrap());
        stream::destroy(on).unwrap();
    }
    assert_eq!(found, (7..107).collect::<Vec<u32>>());
}

#[test]
fn shared_memory_above_48_kb_must_be_allowed() {
    let Some(_context) = gpu() else { return };
    let (_, store) = load();
    let to = DeviceBuffer::<u32>::zeroed(1).unwrap();
    let params = Store {
        to: to.as_device_ptr().as_raw(),
        value: 3,
    };
    let size = LaunchSize {
        grid: 1,
        threads: 1,
        shared_bytes: 96 * 1024,
    };
    // SAFETY: the kernel takes a `Store` and writes one word a block.
    unsafe {
        let refused = function::launch(store, size, std::ptr::null_mut(), &params).unwrap_err();
        assert_eq!(refused.code(), Some(1), "{refused}");
        assert!(
            refused.to_string().starts_with("cuLaunchKernel: "),
            "{refused}"
        );
        function::allow_dynamic_shared(store, size.shared_bytes).unwrap();
        let allowed = function::attribute(store, FunctionAttribute::MaxDynamicSharedBytes).unwrap();
        assert_eq!(allowed, 96 * 1024);
        assert!(0 < function::attribute(store, FunctionAttribute::Registers).unwrap());
        assert_eq!(
            function::attribute(store, FunctionAttribute::LocalBytes).unwrap(),
            0
        );
        assert!(
            (1..=2).contains(
                &function::blocks_per_multiprocessor(store, 1, size.shared_bytes).unwrap()
            )
        );
        function::launch(store, size, std::ptr::null_mut(), &params).unwrap();
        stream::synchronize(std::ptr::null_mut()).unwrap();
    }
    let mut found = [0];
    to.copy_to(&mut found).unwrap();
    assert_eq!(found, [3]);
}

#[test]
fn blocks_that_begin_together_are_as_many_as_the_device_holds() {
    let Some(_context) = gpu() else { return };
    let (_, store) = load();
    let to = DeviceBuffer::<u32>::zeroed(10).unwrap();
    let params = Store {
        to: to.as_device_ptr().as_raw(),
        value: 5,
    };
    let of_blocks = |grid| LaunchSize {
        grid,
        threads: 1,
        shared_bytes: 16,
    };
    // SAFETY: the kernel takes a `Store` and writes one word a block; the launch of more blocks than words is refused.
    unsafe {
        let (on, enough) = (std::ptr::null_mut(), of_blocks(10));
        function::launch_together(store, enough, on, &params).unwrap();
        let refused = function::launch_together(store, of_blocks(1 << 20), on, &params);
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Some(720), "{refused}");
        stream::synchronize(on).unwrap();
    }
    let mut found = [0; 10];
    to.copy_to(&mut found).unwrap();
    assert_eq!(found[9], 14);
}

#[test]
fn a_cubin_is_compiled_and_loaded() {
    let Some(_context) = gpu() else { return };
    // SAFETY: a context is current; the cubin is the driver's own.
    unsafe {
        let (cubin, _) = module::compile(STORE).expect("the kernel compiles");
        assert!(cubin.starts_with(b"\x7fELF"));
        let (module, _) = module::load(Image::Binary(&cubin)).expect("it is for this device");
        module::function(module, c"store").expect("the kernel's name");
        module::unload(module).unwrap();
        let refused = module::compile(c".version 7.0\n.target sm_80\nnonsense\n").unwrap_err();
        assert!(refused.log.errors.contains("line 3"), "{refused}");
    }
}

#[test]
fn the_compilers_errors_are_kept() {
    let Some(_context) = gpu() else { return };
    // SAFETY: a context is current.
    let refused = unsafe { module::load(Image::Ptx(c".version 7.0\n.target sm_80\nnonsense\n")) }
        .unwrap_err();
    assert_eq!(refused.source.code(), Some(218), "{refused}");
    assert!(refused.log.errors.contains("line 3"), "{refused}");
}

#[test]
fn work_is_captured_and_launched_again() {
    let Some(_context) = gpu() else { return };
    let (_, store) = load();
    let to = DeviceBuffer::<u32>::zeroed(10).unwrap();
    let params = Store {
        to: to.as_device_ptr().as_raw(),
        value: 20,
    };
    // SAFETY: the kernel takes a `Store` and writes one word a block; `to` outlives the graph's launches.
    unsafe {
        let on = stream::create().unwrap();
        graph::begin_capture(on).unwrap();
        let size = LaunchSize {
            grid: 10,
            threads: 1,
            shared_bytes: 16,
        };
        function::launch(store, size, on, &params).unwrap();
        function::launch_together(store, size, on, &params).unwrap();
        let captured = graph::end_capture(on).unwrap();
        let exec = graph::instantiate(captured).unwrap();
        graph::launch(exec, on).unwrap();
        stream::synchronize(on).unwrap();
        graph::destroy_exec(exec).unwrap();
        graph::destroy(captured).unwrap();
        stream::destroy(on).unwrap();
    }
    let mut found = [0; 10];
    to.copy_to(&mut found).unwrap();
    assert_eq!(found[9], 29);
}

#[test]
fn events_time_the_work_of_any_stream() {
    let Some(_context) = gpu() else { return };
    let to = DeviceBuffer::<u8>::zeroed(1 << 20).unwrap();
    // SAFETY: the events and the streams are alive; the fill stays inside `to`.
    let elapsed = unsafe {
        let (on, other) = (stream::create().unwrap(), stream::create().unwrap());
        let (start, end) = (event::create().unwrap(), event::create().unwrap());
        event::record(start, on).unwrap();
        event::wait(other, start).unwrap();
        stream::fill(to.as_device_ptr().as_raw(), 0xa5, 1 << 20, other).unwrap();
        event::record(end, other).unwrap();
        event::synchronize(end).unwrap();
        let elapsed = event::elapsed_ms(start, end).unwrap();
        event::destroy(start).unwrap();
        event::destroy(end).unwrap();
        stream::destroy(on).unwrap();
        stream::destroy(other).unwrap();
        elapsed
    };
    assert!(0.0 < elapsed, "{elapsed} ms");
    let mut found = vec![0; 1 << 20];
    to.copy_to(&mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == 0xa5));
}

#[test]
fn one_launch_costs_the_host_less_than_10_us() {
    let Some(_context) = gpu() else { return };
    let (_, store) = load();
    let to = DeviceBuffer::<u32>::zeroed(1).unwrap();
    let params = Store {
        to: to.as_device_ptr().as_raw(),
        value: 0,
    };
    let size = LaunchSize {
        grid: 1,
        threads: 1,
        shared_bytes: 16,
    };
    // SAFETY: the kernel takes a `Store` and writes one word a block.
    let run = || unsafe {
        let start = Instant::now();
        for _ in 0..500 {
            function::launch(store, size, std::ptr::null_mut(), &params).unwrap();
        }
        let spent = start.elapsed();
        stream::synchronize(std::ptr::null_mut()).unwrap();
        spent.as_secs_f64() * 1e6 / 500.0
    };
    let best = (0..10).map(|_| run()).fold(f64::INFINITY, f64::min);
    eprintln!("one launch costs the host {best:.2} us");
    assert!(best < 10.0, "{best:.2} us");
}

#[test]
fn the_driver_tells_its_version_and_the_device_its_identity() {
    let Some(_context) = gpu() else { return };
    assert!(driver_present());
    assert!(
        Version {
            major: 11,
            minor: 0
        } <= Driver::get().unwrap().version().unwrap()
    );
    assert_ne!(device::uuid(0).unwrap(), [0; 16]);
}

#[test]
fn an_error_of_cust_has_the_drivers_words_behind_it() {
    let Some(_context) = gpu() else { return };
    let refused = DeviceBuffer::<u8>::zeroed(1 << 50).unwrap_err();
    assert_eq!(refused, CudaError::OutOfMemory);
    let error = DriverError::from(last_failure().unwrap());
    assert_eq!(
        error.to_string(),
        "cuMemAlloc_v2: out of memory (CUDA_ERROR_OUT_OF_MEMORY, 2)"
    );
}
