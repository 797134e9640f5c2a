//! A TCP link between hosts and a device that a test cuts and mends: an address of the loopback, behind which connections are handed on.
//!
//! What always holds: while it is cut, nobody gets through, and who was connected is not any more; one that is dropped is cut.
//!
//! Who may call it: tests of hosts with several paths.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Connections of a link at once; more are refused.
const CONNECTIONS_MAX: usize = 64;

#[derive(Default)]
struct State {
    /// Where to; `None`: it is cut.
    to: Option<SocketAddr>,
    open: Vec<TcpStream>,
    over: bool,
}

/// A link.
pub struct Link {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Link {
    /// A link to that address.
    ///
    /// # Panics
    /// Where this machine gives no address.
    pub fn to(address: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("an address of the loopback");
        let own = listener.local_addr().expect("it has an address");
        let state = Arc::new(Mutex::new(State { to: Some(address), ..State::default() }));
        let shared = state.clone();
        thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
                if state.over {
                    return;
                }
                state.open.retain(|open| open.peer_addr().is_ok());
                let Some(to) = state.to.filter(|_| state.open.len() < 2 * CONNECTIONS_MAX) else { continue };
                if let Ok(device) = TcpStream::connect(to) {
                    join(socket, device, &mut state.open);
                }
            }
        });
        Link { address: own, state }
    }

    /// Where hosts connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Nobody gets through any more.
    pub fn cut(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.to = None;
        for open in state.open.drain(..) {
            let _ = open.shutdown(Shutdown::Both);
        }
    }

    /// Everybody gets through again, to that address.
    pub fn mend(&self, address: SocketAddr) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).to = Some(address);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.cut();
        self.state.lock().unwrap_or_else(PoisonError::into_inner).over = true;
        // The thread sees it when somebody comes.
        let _ = TcpStream::connect(self.address);
    }
}

/// Hands on what comes, both ways, until either end closes.
fn join(host: TcpStream, device: TcpStream, open: &mut Vec<TcpStream>) {
    for (from, to) in [(&host, &device), (&device, &host)] {
        let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) else { return };
        let _ = from.set_nodelay(true);
        thread::spawn(move || {
            let mut bytes = vec![0; 64 << 10];
            while let Ok(read) = from.read(&mut bytes)
                && read > 0
                && to.write_all(&bytes[..read]).is_ok()
            {}
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
    open.extend([host, device]);
}
