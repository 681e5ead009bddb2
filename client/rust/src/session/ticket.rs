//! The right to a session: the session's number and password, with which another process can take it over.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use rowlock_proto::SessionId;

/// The right to a session. Its text form, for a process that ends the session when its owner is gone, has the
/// password of the session: it belongs into pipes, not into arguments or logs.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionTicket {
    pub(crate) id: SessionId,
    pub(crate) password: Bytes,
}

impl SessionTicket {
    /// Returns the text form: the number and the password in hexadecimal, with a dot between them.
    pub fn reveal(&self) -> String {
        let password: String = self.password.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{:x}.{password}", self.id.0)
    }
}

impl fmt::Debug for SessionTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionTicket({}, password not shown)", self.id)
    }
}

/// The text is not that of a [`SessionTicket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the text of a session ticket")]
pub struct NoTicket;

impl FromStr for SessionTicket {
    type Err = NoTicket;

    fn from_str(text: &str) -> Result<Self, NoTicket> {
        let (id, password) = text.split_once('.').ok_or(NoTicket)?;
        let id = i64::from_str_radix(id, 16).map_err(|_| NoTicket)?;
        if password.is_empty() || !password.is_ascii() || password.len() % 2 == 1 {
            return Err(NoTicket);
        }
        let byte = |at: usize| u8::from_str_radix(&password[at..at + 2], 16).map_err(|_| NoTicket);
        let password = (0..password.len()).step_by(2).map(byte).collect::<Result<Vec<u8>, _>>()?;
        Ok(SessionTicket { id: SessionId(id), password: password.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_read_back_from_its_text_and_shows_no_password() {
        let ticket = SessionTicket { id: SessionId(0x1ab), password: Bytes::from_static(&[0, 255, 16]) };
        assert_eq!(ticket.reveal(), "1ab.00ff10");
        assert_eq!(ticket.reveal().parse(), Ok(ticket.clone()));
        assert!(!format!("{ticket:?}").contains("00ff10"));
        for wrong in ["", "1ab", "1ab.", "1ab.0", "x.00", "1ab.zz"] {
            assert_eq!(wrong.parse::<SessionTicket>(), Err(NoTicket), "{wrong}");
        }
    }
}
