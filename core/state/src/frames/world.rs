//! A state with a session, and requests submitted as a node submits requests to the log.

use std::sync::Arc;

use rowlock_frames::{Kind, create};
use rowlock_proto::acl::Id;
use rowlock_proto::lock::QueuePosition;
use rowlock_proto::response::Response;
use rowlock_proto::{CreateMode, ErrorCode, FencingToken, Request, SessionId};

use crate::Machine;
use crate::command::{Attachment, Command, Origin, Proposal, Stamp};
use crate::cost::Cost;
use crate::proof::Proof;

/// Parent of all znodes of the requests.
pub(super) const ROOT: &str = "/0000";

pub(super) struct World {
    pub(super) machine: Machine,
    pub(super) session: SessionId,
}

impl World {
    pub(super) fn new() -> Self {
        let mut world = World { machine: Machine::new(), session: SessionId::NONE };
        world.session = world.open();
        world
    }

    pub(super) fn open(&mut self) -> SessionId {
        let attachment = Attachment(0);
        let command = Command::OpenSession { proof: Proof::of(&[1; 16]), timeout_ms: 1_000 };
        let (origin, session) = (Origin::default(), SessionId::NONE);
        let proposal = Proposal { origin, session, attachment, identities: Default::default(), command };
        self.machine.apply(1_000, &proposal, &mut ()).attached.expect("a session opens").session
    }

    pub(super) fn proposal(&self, identities: &Arc<[Id]>, command: Command) -> Proposal {
        let (origin, attachment) = (Origin::default(), Attachment(1));
        Proposal { origin, session: self.session, attachment, identities: identities.clone(), command }
    }

    pub(super) fn price(&self, identities: &Arc<[Id]>, command: Command) -> Result<Cost, ErrorCode> {
        self.machine.price(&self.proposal(identities, command))
    }

    pub(super) fn apply(&mut self, identities: &Arc<[Id]>, command: Command) -> Result<Response, ErrorCode> {
        let proposal = self.proposal(identities, command);
        let stamp = Stamp { time_ms: 1_000, ..Stamp::default() };
        self.machine.apply_stamped(stamp, &proposal, &mut ()).result
    }

    /// Runs a preparatory command; panics on a refusal.
    pub(super) fn run(&mut self, command: Command) -> Response {
        match self.apply(&Arc::default(), command) {
            Ok(Response::Multi(results)) => {
                assert!(!results.iter().any(|it| matches!(it, rowlock_proto::response::OpResult::Error(_))));
                Response::Multi(results)
            }
            other => other.unwrap(),
        }
    }

    /// Prepares the state for a request of this kind, below a znode of its own. Returns the token of the
    /// first position taken.
    pub(super) fn prepare(&mut self, kind: &Kind) -> FencingToken {
        let root = create(ROOT, CreateMode::Persistent);
        self.run(Command::Client(Request::Create2(root)));
        let mut token = FencingToken::default();
        for request in (kind.prepare)(ROOT) {
            if let Response::QueuePositions(positions) = self.run(command(request))
                && let Some(QueuePosition::Held(claim)) = positions.first()
            {
                token = claim.token;
            }
        }
        token
    }
}

/// Makes the command of a logged request.
pub(super) fn command(request: Request) -> Command {
    let opcode = request.opcode();
    Command::of_client(request).unwrap_or_else(|| panic!("{opcode} is not logged"))
}
