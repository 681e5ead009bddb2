//! Open connections with outdated certificates.

use super::*;

#[tokio::test]
async fn only_connections_with_revoked_or_expired_certificates_end() {
    let place = Place::new();
    let revoked = place.new_client(&place.clients, "mallory", DAY);
    place.new_client(&place.clients, "alice", DAY);
    place.new_client(&place.clients, "brief", 5);
    place.write("crl.pem", &place.clients.revoke(&[]).unwrap());
    let files = Files { crl: Some(place.path("crl.pem")), ..place.files("node-1") };
    let keeper = Arc::new(Keeper::open(files, ClientAuth::Need, |_| Ok(())).unwrap());
    let node = keeper.material();
    let (mut theirs, mut all) = (Vec::new(), Vec::new());
    for name in ["mallory", "alice", "brief"] {
        let (dialed, accepted) = client(&place.client(name), "localhost", &node).await;
        theirs.push(dialed.unwrap());
        all.push(accepted.unwrap().stream);
    }
    let (dialed, accepted) = peers(&node, &place.material("node-2")).await;
    let (mut dialed, _accepted) = (dialed.unwrap().0, accepted.unwrap());
    let (mut alice, mut mallory) = (all.remove(1), all.remove(0));
    let waiting = tokio::spawn(async move { mallory.read_u8().await });
    assert_eq!(keeper.close_outdated(&Reloaded::Same), 0);
    place.write("crl.pem", &place.clients.revoke(&[&revoked.certificate]).unwrap());
    assert_eq!((keeper.reload(), keeper.close_outdated(&Reloaded::New)), (Reloaded::New, 1));
    let end = time::timeout(PATIENCE, waiting).await.expect("the waiter is woken").unwrap();
    assert!(end.unwrap_err().to_string().contains("does not count any more"));
    let over = async {
        while keeper.close_outdated(&Reloaded::Same) == 0 {
            time::sleep(Duration::from_millis(20)).await;
        }
    };
    time::timeout(PATIENCE, over).await.expect("the certificate for five seconds expires");
    all[0].write_u8(1).await.expect_err("it has expired");
    alice.write_u8(1).await.expect("hers counts");
    dialed.write_u8(1).await.expect("that of a node counts");
    // A handshake under replaced files fails.
    let late = client(&place.client("alice"), "localhost", &node).await.1;
    assert!(refusal(late).contains("have changed meanwhile"));
}
