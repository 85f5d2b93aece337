//! The daemon on the host: adapters and the service.
