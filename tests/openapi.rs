//! The OpenAPI document is valid, as the validator that its users run says. `.ci/run` installs that one.

use std::path::Path;

use crate::support::command::finish;
use crate::support::tools::{self, Tool};

const VALIDATE: &str =
    "import json, sys, openapi_spec_validator; openapi_spec_validator.validate(json.load(open(sys.argv[1])))";

#[test]
fn the_document_is_valid_openapi() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let of_ci = root.join("target/openapi-validator/bin/python");
    let tool = Tool {
        name: "openapi-spec-validator",
        programs: &[&of_ci, Path::new("python3")],
        probe: &["-c", "import importlib.metadata as m; print(m.version('openapi-spec-validator'))"],
        least: &[0, 7],
        skipped: "the validity of the OpenAPI document",
    };
    let Some(python) = tool.find() else { return };
    let mut command = tools::command(python);
    let document = root.join("coordinator/src/http/api/openapi/openapi.json");
    let said = finish(command.args(["-c", VALIDATE]).arg(document).spawn().unwrap());
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
}
