//! OpenAPI document, derived from the types of requests and responses and from `paths.rs`.

use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{Operation, ParameterBuilder, ParameterIn};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Header, Object, RefOr, Required, ServerBuilder, Type};
use utoipa::{IntoResponses as _, Modify, OpenApi};

use super::{kinds, paths};
use crate::access::http::api::answer::ProblemDocument;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Rowlock",
        version = "1",
        description = "Locks, elections and znodes by HTTP. Guarantees, limits and retries: docs/rest.md.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    paths(
        paths::new_lease, paths::keep_alive, paths::end_lease,
        paths::one_lock, paths::acquire, paths::acquire_all, paths::release, paths::verify, paths::ask,
        paths::force,
        paths::campaign, paths::resign, paths::leader,
        paths::get_root, paths::get_znode, paths::set_znode, paths::create_znode, paths::delete_znode,
        paths::lock_state, paths::lock_state_by_put, paths::unlock_state,
        paths::locks, paths::queue, paths::history, paths::contention, paths::sessions, paths::access, paths::end_session, paths::status, paths::watch,
        paths::openapi,
    ),
    components(schemas(ProblemDocument)),
    modifiers(&Everywhere),
)]
struct Document;

/// Properties of all requests.
struct Everywhere;

impl Modify for Everywhere {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = |scheme: HttpAuthScheme, what: &str| {
            SecurityScheme::Http(HttpBuilder::new().scheme(scheme).description(Some(what)).build())
        };
        let components = document.components.get_or_insert_default();
        components
            .add_security_scheme("token", scheme(HttpAuthScheme::Bearer, "A token of `rowlock token new`"));
        components.add_security_scheme(
            "password",
            scheme(HttpAuthScheme::Basic, "The token as password, with any user name, for locks of states"),
        );
        document.servers = Some(vec![ServerBuilder::new().url("/").description(Some("This node")).build()]);
        for (path, item) in &mut document.paths.paths {
            let is_open = path == super::OPENAPI_PATH;
            let operations =
                [&mut item.get, &mut item.put, &mut item.post, &mut item.delete].into_iter().flatten();
            for operation in operations.filter(|_| !is_open) {
                add_problems(operation);
                mark_optional_body(operation);
                // An open listener on loopback needs no identity.
                let none: [&str; 0] = [];
                let token = SecurityRequirement::new("token", none);
                let password = path.starts_with(super::super::super::state_lock::PREFIX);
                let password = password.then(|| SecurityRequirement::new("password", none));
                let all = [SecurityRequirement::default(), token].into_iter().chain(password);
                operation.security = Some(all.collect());
            }
            let is_work = !path.starts_with("/v1/leases/");
            let writes = [&mut item.put, &mut item.post, &mut item.delete].into_iter().flatten();
            writes.filter(|_| is_work).for_each(add_invitation);
        }
    }
}

/// Marks the body as optional unless a field is required: an empty body is a document without fields.
fn mark_optional_body(operation: &mut Operation) {
    let needs_body = ["acquire_all", "verify", "ask", "lock_state", "lock_state_by_put", "unlock_state"];
    let is_needed = operation.operation_id.as_deref().is_some_and(|id| needs_body.contains(&id));
    if let Some(RefOr::T(body)) = operation.request_body.as_mut().filter(|_| !is_needed) {
        body.required = Some(Required::False);
    }
}

/// Adds the errors common to all requests, and to requests with a body, unless the request defines the status
/// itself.
fn add_problems(operation: &mut Operation) {
    let of_body = operation.request_body.is_some().then(kinds::Body::responses);
    for (status, problem) in kinds::Anything::responses().into_iter().chain(of_body.into_iter().flatten()) {
        operation.responses.responses.entry(status).or_insert(problem);
    }
}

/// Adds the header of a client that prefers the leader, and the response header with the leader's address.
fn add_invitation(operation: &mut Operation) {
    let prefer = ParameterBuilder::new().name("Prefer").parameter_in(ParameterIn::Header);
    let prefer = prefer.description(Some("leader: return the leader's address if the rate limit permits"));
    let prefer = prefer.schema(Some(Object::with_type(Type::String))).build();
    operation.parameters.get_or_insert_default().push(prefer.into());
    let leader = HeaderBuilder::from(Header::default())
        .description(Some("host:port of the leader, if another node leads"));
    let leader = leader.build();
    for (status, response) in &mut operation.responses.responses {
        if let RefOr::T(response) = response
            && status.starts_with('2')
        {
            response.headers.insert("Rowlock-Leader".to_owned(), RefOr::T(leader.clone()));
        }
    }
}

/// Returns the document as text, indented by two spaces. utoipa writes `int32` for `u32` with a minimum of 0
/// or more; this function writes `uint32`.
pub(super) fn document() -> String {
    let text = Document::openapi().to_pretty_json().expect("Invariant: a document is maps, lists and text");
    let parts = text.split_inclusive('}').map(|part| {
        let is_unsigned = part.contains("\"minimum\": ") && !part.contains("\"minimum\": -");
        if is_unsigned { part.replace("\"int32\"", "\"uint32\"") } else { part.to_owned() }
    });
    parts.collect::<String>() + "\n"
}
