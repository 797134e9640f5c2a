//! The virtual serial port, which `willow app log NAME` shows; and what a panic leaves on it.

use core::fmt::{self, Write};

use crate::sys;

/// Writes to the virtual serial port of this instance.
#[derive(Clone, Copy, Debug, Default)]
pub struct SerialPort;

impl Write for SerialPort {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        sys::print(text.as_bytes());
        Ok(())
    }
}

#[doc(hidden)]
pub fn print_arguments(arguments: fmt::Arguments<'_>) {
    match arguments.as_str() {
        Some(text) => sys::print(text.as_bytes()),
        // The serial port takes everything; only a `Display` of the app's own can fail, and then the rest is left out.
        None => drop(SerialPort.write_fmt(arguments)),
    }
}

/// Prints on the virtual serial port, like the standard library's `print!`.
#[macro_export]
macro_rules! print {
    ($($argument:tt)*) => { $crate::print_arguments(::core::format_args!($($argument)*)) };
}

/// Prints a line on the virtual serial port, like the standard library's `println!`.
#[macro_export]
macro_rules! println {
    () => { $crate::print!("\n") };
    ($format:literal $($argument:tt)*) => { $crate::print!(::core::concat!($format, "\n") $($argument)*) };
}

#[cfg(all(target_arch = "wasm32", feature = "panic-handler"))]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    // By hand: formatting would add several kilobytes to every app.
    sys::print(b"panic at ");
    if let Some(location) = info.location() {
        sys::print(location.file().as_bytes());
        sys::print(b":");
        let mut digits = [0u8; 10];
        let mut at = digits.len();
        let mut line = location.line();
        loop {
            at -= 1;
            digits[at] = b'0' + (line % 10) as u8;
            line /= 10;
            if line == 0 {
                break;
            }
        }
        sys::print(&digits[at..]);
    }
    if let Some(message) = info.message().as_str() {
        sys::print(b": ");
        sys::print(message.as_bytes());
    }
    sys::print(b"\n");
    core::arch::wasm32::unreachable()
}
