//! A connection without a bus between its ends, for tests.

use std::os::unix::net::UnixStream;

use zbus::connection::Builder;
use zbus::{Connection, Guid};

/// Both ends: that of a server, made ready by `serve`, and a client's.
pub(crate) async fn connected(
    serve: impl FnOnce(Builder<'static>) -> Builder<'static>,
) -> (Connection, Connection) {
    let (server, client) = UnixStream::pair().unwrap();
    let server = Builder::unix_stream(server).server(Guid::generate()).p2p();
    let client = Builder::unix_stream(client).p2p();
    let (server, client) = tokio::join!(serve(server).build(), client.build());
    (server.unwrap(), client.unwrap())
}
