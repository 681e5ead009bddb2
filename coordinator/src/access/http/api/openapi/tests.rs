mod derived;
mod kinds;
mod paths;

use std::collections::BTreeSet;

use serde_json::Value;

use super::*;

/// File embedded in the program.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/access/http/api/openapi/openapi.json");

#[test]
#[allow(clippy::disallowed_methods)] // the file of the test
fn served_document_equals_the_derived_document() {
    let derived = derived::document();
    if std::env::var_os("ROWLOCK_UPDATE").is_some() {
        std::fs::write(FILE, &derived).unwrap();
    }
    let file = std::fs::read_to_string(FILE).unwrap_or_default();
    assert!(file == derived, "openapi.json is another one; ROWLOCK_UPDATE=1 writes it anew");
}

fn served() -> Value {
    serde_json::from_slice(&ui::unzip(FILES[0].2)).unwrap()
}

/// Returns the paths of the router in OpenAPI's notation. Handlers split the path after a lock's name, so
/// this function lists their paths explicitly.
fn routed() -> BTreeSet<String> {
    let source = include_str!("../../api.rs");
    let routes = source.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next());
    let mut paths = BTreeSet::new();
    for route in routes {
        match route {
            "/v1/locks/{*rest}" => {
                for verb in ["", "/acquire", "/release", "/verify", "/ask", "/holders/{token}"] {
                    paths.insert(format!("/v1/locks/{{name}}{verb}"));
                }
            }
            // Same as the path with the slash.
            "/v1/znodes" => {}
            _ => drop(paths.insert(route.replace("{*", "{").replace("{id}", "{lease}"))),
        }
    }
    paths
}

#[test]
fn document_has_exactly_the_routes_of_the_router() {
    let document = served();
    let said: BTreeSet<String> = document["paths"].as_object().unwrap().keys().cloned().collect();
    let mut routed = routed();
    routed.insert(OPENAPI_PATH.to_owned());
    assert_eq!(said, routed);
}

#[test]
fn error_responses_are_problems_except_terraforms() {
    let document = served();
    let mut count = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            for (status, answer) in operation["responses"].as_object().unwrap() {
                assert!(answer["description"].is_string(), "OpenAPI requires one: {method} {path} {status}");
                let is_terraforms = path.starts_with("/v1/terraform/") && ["409", "423"].contains(&&**status);
                if status.starts_with(['4', '5']) && !is_terraforms {
                    let content = answer["content"].as_object().unwrap();
                    assert!(content.contains_key("application/problem+json"), "{method} {path} {status}");
                    count += 1;
                }
            }
        }
    }
    assert!(count > 100, "{count} of them");
}

#[test]
fn page_is_small_and_loads_nothing_from_other_sites() {
    let page = FILES.iter().filter(|(path, ..)| *path != OPENAPI_PATH);
    let page: Vec<_> =
        page.map(|(path, _, text)| (path, String::from_utf8(ui::unzip(text).to_vec()).unwrap())).collect();
    let bytes: usize = page.iter().map(|(_, text)| text.len()).sum();
    assert!(bytes < 10_000, "{bytes} bytes");
    for (path, text) in page {
        for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "http://", "https://", "style="]
        {
            assert!(!text.contains(word), "{path} has {word}");
        }
    }
}
