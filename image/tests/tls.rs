//! HTTPS: who is trusted, and what is presented to whom.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing test may say so this way"
)]

mod support;

use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use slotd_image::{Error, ErrorKind, FetchSettings, Secret};
use support::server::{Reply, Request, Server, Stream};
use support::{MIB, expecting, flash, frame, image, old_slot, quick, target};

/// A certification authority of its own for one test.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    pem: tempfile::NamedTempFile,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let pem = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(pem.path(), issuer.pem()).unwrap();
        Self { issuer, pem }
    }

    fn issue(&self, name: &str, from_year: i32) -> (rcgen::Certificate, KeyPair) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(from_year, 1, 1);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    fn settings(&self) -> FetchSettings {
        FetchSettings {
            ca_bundle: Some(self.pem.path().to_owned()),
            ..quick()
        }
    }
}

/// Serves `localhost`; notes for each connection whether the client presented a certificate.
fn serve(
    authority: &Authority,
    from_year: i32,
    handler: impl Fn(usize, &Request) -> Reply + Send + Sync + 'static,
) -> (Server, Arc<Mutex<Vec<bool>>>) {
    let (certificate, key) = authority.issue("localhost", from_year);
    let mut roots = RootCertStore::empty();
    roots.add(authority.issuer.der().clone()).unwrap();
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .allow_unauthenticated()
        .build()
        .unwrap();
    let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key)
        .unwrap();
    let (config, presented) = (Arc::new(config), Arc::new(Mutex::new(Vec::new())));
    let log = Arc::clone(&presented);
    let accept = move |mut stream: TcpStream| -> Option<Box<dyn Stream>> {
        let mut connection = ServerConnection::new(Arc::clone(&config)).unwrap();
        while connection.is_handshaking() {
            connection.complete_io(&mut stream).ok()?;
        }
        log.lock()
            .unwrap()
            .push(connection.peer_certificates().is_some());
        Some(Box::new(StreamOwned::new(connection, stream)))
    };
    (Server::over("https", Arc::new(accept), handler), presented)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn published() -> Arc<Vec<u8>> {
    Arc::new(frame(&image(2 * MIB), true))
}

fn fetch(server: &Server, settings: &FetchSettings) -> slotd_image::Result<()> {
    let file = old_slot(4 * MIB);
    let source = server.source("/i.zst");
    let outcome = flash(
        source,
        &mut target(file.path()),
        settings,
        &expecting(&published()),
    );
    outcome.0.map(|_| ())
}

#[test]
fn a_server_of_the_configured_authority_is_trusted_with_its_certificate_and_token() {
    let authority = Authority::new();
    let (server, presented) = serve(&authority, 2020, |_, _| Reply::Content(published()));
    let (mut settings, _identity) = with_identity(&authority, &[&server]);
    settings.bearer_token = Some(Secret::new("hunter2"));
    fetch(&server, &settings).unwrap();
    assert_eq!(*presented.lock().unwrap(), [true]);
    assert_eq!(
        server.requests()[0].header("authorization"),
        Some("Bearer hunter2")
    );
}

/// Settings with a client certificate, and the file that it is in.
fn with_identity(
    authority: &Authority,
    origins: &[&Server],
) -> (FetchSettings, tempfile::NamedTempFile) {
    let (certificate, key) = authority.issue("node-1", 2020);
    let identity = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(identity.path(), certificate.pem() + &key.serialize_pem()).unwrap();
    let origins = origins.iter().map(|server| server.url("").parse().unwrap());
    let settings = FetchSettings {
        origins: origins.collect(),
        client_identity: Some(identity.path().to_owned()),
        ..authority.settings()
    };
    (settings, identity)
}

#[test]
fn the_client_certificate_is_not_presented_to_another_origin() {
    let authority = Authority::new();
    let (other, shown_to_other) = serve(&authority, 2020, |_, _| Reply::Content(published()));
    let elsewhere = other.url("/there");
    let (first, shown_to_first) = serve(&authority, 2020, move |_, _| Reply::To(elsewhere.clone()));
    let (settings, _identity) = with_identity(&authority, &[&first, &other]);
    fetch(&first, &settings).unwrap();
    assert_eq!(*shown_to_first.lock().unwrap(), [true]);
    assert_eq!(*shown_to_other.lock().unwrap(), [false]);
}

#[test]
fn the_client_certificate_is_not_presented_to_an_origin_that_is_not_listed() {
    let authority = Authority::new();
    let (listed, shown_to_listed) = serve(&authority, 2020, |_, _| Reply::Content(published()));
    let back = listed.url("/there");
    let (stranger, shown_to_stranger) =
        serve(&authority, 2020, move |_, _| Reply::To(back.clone()));
    let (settings, _identity) = with_identity(&authority, &[&listed]);
    // Led back to the listed one by the stranger, it is not presented either.
    fetch(&stranger, &settings).unwrap();
    assert_eq!(*shown_to_stranger.lock().unwrap(), [false]);
    assert_eq!(*shown_to_listed.lock().unwrap(), [false]);
    fetch(&listed, &settings).unwrap();
    assert_eq!(*shown_to_listed.lock().unwrap(), [false, true]);
}

#[test]
fn a_server_of_another_authority_is_refused_as_a_matter_of_configuration() {
    let (server, _) = serve(&Authority::new(), 2020, |_, _| Reply::Content(published()));
    let error = fetch(&server, &Authority::new().settings()).unwrap_err();
    assert!(matches!(error, Error::Certificate { .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert_eq!(server.requests().len(), 0);
}

#[test]
fn a_certificate_from_the_future_is_not_blamed_on_a_clock_that_is_set() {
    let authority = Authority::new();
    let (server, _) = serve(&authority, 2090, |_, _| Reply::Content(published()));
    let error = fetch(&server, &authority.settings()).unwrap_err();
    assert!(matches!(error, Error::Certificate { .. }), "{error}");
    assert!(error.to_string().contains("not valid yet"), "{error}");
}

#[test]
fn a_redirect_from_https_to_plain_http_is_refused() {
    let authority = Authority::new();
    let plain = Server::always(Reply::Content(published()));
    let elsewhere = plain.url("/i?sig=secret");
    let (server, _) = serve(&authority, 2020, move |_, _| Reply::To(elsewhere.clone()));
    let error = fetch(&server, &authority.settings()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("redirects from https to plain http"),
        "{error}"
    );
    assert!(!error.to_string().contains("secret"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Reject);
    assert_eq!(plain.requests().len(), 0);
}

#[test]
fn a_connection_that_breaks_under_tls_starts_again() {
    let authority = Authority::new();
    let (server, _) = serve(&authority, 2020, |number, _| match number {
        0 => Reply::BreaksAt(published(), 300_000),
        _ => Reply::Content(published()),
    });
    fetch(&server, &authority.settings()).unwrap();
    assert_eq!(server.requests().len(), 2);
}
