//! Window of pipelined transactions, in order. Each transaction creates its own journal entry: after a lost
//! connection the entry shows whether the transaction took effect.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use rowlock_client::{Client, Error, Outcome, Transaction};

use super::limits::BATCHES_IN_FLIGHT;
use super::retry::retry;

type Reply = Pin<Box<dyn Future<Output = Result<Vec<Outcome>, Error>>>>;

/// Transaction with the data for retries and messages.
#[derive(Clone, Debug)]
pub struct SentTransaction {
    pub entry: String,
    /// Operations, including the create of the entry.
    pub transaction: Transaction,
    /// First operation of each path, for messages.
    pub about: Vec<(usize, String)>,
    pub amount: Amount,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub znodes: u64,
    pub bytes: u64,
}

/// Transaction that did not and will not take effect.
#[derive(Debug)]
pub struct Refused {
    pub about: String,
    pub error: Error,
}

struct Sent {
    batch: SentTransaction,
    reply: Reply,
}

pub struct Window {
    client: Client,
    sent: VecDeque<Sent>,
    pub done: Amount,
}

impl Window {
    pub fn new(client: Client) -> Self {
        Window { client, sent: VecDeque::new(), done: Amount::default() }
    }

    /// Sends a transaction; waits for the oldest one if too many are in flight.
    pub async fn send(&mut self, batch: SentTransaction) -> Result<(), Refused> {
        while self.sent.len() >= BATCHES_IN_FLIGHT {
            self.take().await?;
        }
        let (client, transaction) = (self.client.clone(), batch.transaction.clone());
        let mut reply: Reply = Box::pin(async move { client.commit(transaction).await });
        // The first poll fixes the transaction's order in the session.
        let polled = poll_fn(|cx| Poll::Ready(reply.as_mut().poll(cx))).await;
        if let Poll::Ready(outcome) = polled {
            reply = Box::pin(std::future::ready(outcome));
        }
        self.sent.push_back(Sent { batch, reply });
        Ok(())
    }

    pub async fn finish(&mut self) -> Result<(), Refused> {
        while !self.sent.is_empty() {
            self.take().await?;
        }
        Ok(())
    }

    async fn take(&mut self) -> Result<(), Refused> {
        let Some(Sent { batch, reply }) = self.sent.pop_front() else { return Ok(()) };
        match reply.await {
            Ok(_) => {
                self.count(&batch);
                Ok(())
            }
            Err(e) if e.may_have_happened() || e.is_retryable() => self.complete_all(batch).await,
            Err(e) => Err(refused(&batch, e)),
        }
    }

    /// Completes all transactions after a lost connection: later ones may have failed because of an earlier
    /// one. All replies are awaited before the first retry, in order.
    async fn complete_all(&mut self, first: SentTransaction) -> Result<(), Refused> {
        let mut open = vec![first];
        while let Some(Sent { batch, reply }) = self.sent.pop_front() {
            match reply.await {
                Ok(_) => self.count(&batch),
                Err(_) => open.push(batch),
            }
        }
        for batch in open {
            self.repeat(&batch).await.map_err(|e| refused(&batch, e))?;
            self.count(&batch);
        }
        Ok(())
    }

    async fn repeat(&self, batch: &SentTransaction) -> Result<(), Error> {
        retry(|| async {
            self.client.sync(&batch.entry).await?;
            if self.client.exists(&batch.entry).await?.is_none() {
                self.client.commit(batch.transaction.clone()).await?;
            }
            Ok(())
        })
        .await
    }

    fn count(&mut self, batch: &SentTransaction) {
        self.done.znodes += batch.amount.znodes;
        self.done.bytes += batch.amount.bytes;
    }
}

fn refused(batch: &SentTransaction, error: Error) -> Refused {
    let about = match &error {
        Error::TransactionRejected { index, .. } => {
            let about = batch.about.iter().rev().find(|(first, _)| first <= index);
            about.map(|(_, path)| path.clone())
        }
        _ => None,
    };
    Refused { about: about.unwrap_or_else(|| "the import".to_owned()), error }
}
