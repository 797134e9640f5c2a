//! [`crate::app!`].

/// Makes an SSD App of handlers. Once in a crate, at its root.
///
/// ```
/// use core::cell::Cell;
/// use willow_sdk::{Error, Request, Response};
///
/// struct State {
///     calls: Cell<u32>,
/// }
///
/// async fn count_calls(_request: Request, state: &State) -> Result<Response, Error> {
///     state.calls.set(state.calls.get() + 1);
///     Ok(Response::success(state.calls.get()))
/// }
///
/// willow_sdk::app! {
///     name: "example",
///     version: "0.1.0",
///     state: State = State { calls: Cell::new(0) },
///     threads: 4,
///     handlers: { 1 => count_calls },
/// }
/// # fn main() {}
/// ```
///
/// - `state` is there once on each SPU: a type and a constant expression. Handlers of one SPU share it by `&State`.
/// - `threads`: most requests that are being handled on an SPU at the same time, 1 to 64; more wait outside. Each takes the
///   memory of the largest handler's future.
/// - `handlers`: constant numbers from 1 to 255, and functions `async fn(Request, &State) -> impl Into<Response>`.
/// - `public: "1,2"` or `"*"`, optional: handlers that any user's processes and apps may call. Without it only the user who
///   installed the app, and the host kernel.
/// - `kernel: "3"` or `"*"`, optional: handlers that are called on behalf of the host kernel alone.
/// - `settles: true`, optional, for apps that the host's kernel installs: SPU-OS waits for the app's answer to `Started` before hosts' requests
///   begin, and tells it of rights that were taken back ([`crate::DeviceEvent::Revoked`]): for apps that carry out writes after they have answered.
/// - `long: true`, optional: its handlers may run as long as those of the host kernel's apps, and make way for others now and then. Each run
///   costs more then, so that it is for handlers that compute much (docs/abi.md, Budget).
/// - `events: on_event`, optional: `async fn(Request, DeviceEvent, &State) -> impl Into<Response>`.
///
/// In a module this makes the exports `start` and `complete` and the section `willow.app`. Elsewhere it makes
/// `pub fn native() -> &'static dyn NativeApp`, the same app for tests, debuggers and hosts without a sandbox; there, what a
/// handler holds across a wait must not be bound to the thread of the operating system.
#[macro_export]
macro_rules! app {
    (
        name: $name:expr,
        version: $version:expr,
        state: $state:ty = $initial:expr,
        threads: $threads:expr,
        handlers: { $($number:expr => $handler:ident),+ $(,)? }
        $(, public: $public:expr)?
        $(, kernel: $kernel:expr)?
        $(, settles: $settles:literal)?
        $(, long: $long:literal)?
        $(, events: $events:ident)? $(,)?
    ) => {
        // Handlers work for any lifetime of the state, so that they cannot keep a reference for longer than an instance is.
        $(
            const _: () = {
                #[allow(dead_code)]
                fn any_lifetime<'a>(
                    request: $crate::Request,
                    state: &'a $state,
                ) -> impl ::core::future::Future<Output: ::core::convert::Into<$crate::Response>> + 'a {
                    $handler(request, state)
                }
            };
        )+
        $(
            const _: () = {
                #[allow(dead_code)]
                fn any_lifetime<'a>(
                    request: $crate::Request,
                    event: $crate::DeviceEvent,
                    state: &'a $state,
                ) -> impl ::core::future::Future<Output: ::core::convert::Into<$crate::Response>> + 'a {
                    $events(request, event, state)
                }
            };
        )?

        #[doc(hidden)]
        #[allow(unused_imports, missing_docs)]
        mod __willow {
            use super::*;

            const WILLOW_HANDLERS: &[$crate::manifest::Entry] = &[$(($number, ::core::stringify!($handler))),+];
            const WILLOW_CALLERS: (&str, &str) = (::core::concat!($($public)?), ::core::concat!($($kernel)?));
            const WILLOW_WISHES: (bool, bool) = (false $(|| $settles)?, false $(|| $long)?);
            const WILLOW_MANIFEST_BYTES: usize =
                $crate::manifest::manifest_bytes($name, $version, WILLOW_HANDLERS, WILLOW_CALLERS, WILLOW_WISHES);
            #[cfg_attr(target_arch = "wasm32", unsafe(link_section = "willow.app"))]
            #[used]
            pub static WILLOW_MANIFEST: [u8; WILLOW_MANIFEST_BYTES] =
                $crate::manifest::manifest($name, $version, WILLOW_HANDLERS, WILLOW_CALLERS, WILLOW_WISHES);

            const WILLOW_SLOT_BYTES: usize = $crate::executor::largest(&[
                $($crate::executor::handler_bytes::<$state, _>($handler),)+
                $($crate::executor::event_handler_bytes::<$state, _>($events),)?
            ]);
            const WILLOW_THREADS: usize = $threads;
            type WillowSlots = $crate::executor::Slots<WILLOW_SLOT_BYTES, WILLOW_THREADS>;

            #[inline]
            fn willow_start(slots: &'static WillowSlots, state: &'static $state, token: u32, handler: u32) -> i32 {
                $(
                    if handler == ($number) as u32 {
                        return slots.start(token, |request| $handler(request, state));
                    }
                )+
                if handler == 0 {
                    $(
                        return slots.start(token, |request| {
                            let event = $crate::DeviceEvent::receive(&request);
                            $events(request, event, state)
                        });
                    )?
                    #[allow(unreachable_code)]
                    return $crate::executor::ignore_event(token);
                }
                $crate::executor::refuse(token)
            }

            #[cfg(target_arch = "wasm32")]
            const _: () = {
                struct WillowState($state);
                // SAFETY: a module without atomics has one thread of execution.
                unsafe impl Sync for WillowState {}
                static SLOTS: WillowSlots = WillowSlots::new();
                static STATE: WillowState = WillowState($initial);

                #[unsafe(export_name = "start")]
                extern "C" fn willow_start_export(token: u32, handler: u32) -> i32 {
                    willow_start(&SLOTS, &STATE.0, token, handler)
                }
                #[unsafe(export_name = "complete")]
                extern "C" fn willow_complete_export(wait: u32, result: i64) -> i32 {
                    SLOTS.complete(wait, result)
                }
            };

            #[cfg(not(target_arch = "wasm32"))]
            pub struct WillowApp;
            #[cfg(not(target_arch = "wasm32"))]
            impl $crate::native::NativeApp for WillowApp {
                fn instantiate(&self) -> $crate::native::BoxedInstance {
                    $crate::native::instantiate::<$state, WILLOW_SLOT_BYTES, WILLOW_THREADS>($initial, willow_start)
                }
                fn manifest(&self) -> &'static [u8] {
                    &WILLOW_MANIFEST
                }
            }
        }

        /// The app as native code.
        #[cfg(not(target_arch = "wasm32"))]
        pub fn native() -> &'static dyn $crate::native::NativeApp {
            &__willow::WillowApp
        }
    };
}
