//! Finds the ID by which a balancer finds this server: in the settings, else in the environment.

use std::env;

use keypadd_cli::error::Error;
use keypadd_config::{Settings, values};
use keypadd_tunnel::ServerId;

use super::values::checked;

/// The variable in which AWS's Load Balancer Controller hands a pod its server ID.
pub(crate) const AWS_SERVER_ID: &str = "AWS_LBC_QUIC_SERVER_ID";

/// The ID of a daemon's server, if it has a server and that has one.
///
/// # Errors
/// Exit 2: that of the environment is invalid.
pub(crate) fn server_id(settings: &Settings) -> Result<Option<ServerId>, Error> {
    if settings.listen.is_none() {
        return Ok(None);
    }
    let of_environment = || env::var_os(AWS_SERVER_ID).filter(|text| !text.is_empty());
    match (&settings.server_id, of_environment()) {
        (Some(own), _) => Ok(Some(own.value)),
        (None, Some(text)) => {
            checked(AWS_SERVER_ID, values::server_id(&text.to_string_lossy())).map(Some)
        }
        (None, None) => Ok(None),
    }
}
