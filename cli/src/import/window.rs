//! The window of pipelined transactions, in order. Each creates its own entry in the journal, so that after a
//! lost connection the entry tells whether the transaction took effect.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use rowlock_client::{Client, Error, Outcome, Transaction};

use super::limits::BATCHES_IN_FLIGHT;
use super::retry::insist;

type Reply = Pin<Box<dyn Future<Output = Result<Vec<Outcome>, Error>>>>;

/// A transaction with what is needed to repeat and to explain it.
#[derive(Clone, Debug)]
pub struct SentTransaction {
    /// Path of its entry in the journal.
    pub entry: String,
    /// Its operations, the entry's create among them.
    pub transaction: Transaction,
    /// From which operation on it is about which path, for messages.
    pub about: Vec<(usize, String)>,
    /// Znodes and bytes it brings.
    pub amount: Amount,
}

/// How much was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub znodes: u64,
    pub bytes: u64,
}

/// A transaction that did not take effect, and never will.
#[derive(Debug)]
pub struct Refused {
    /// What its failing operation was about.
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

    /// Sends a transaction; waits for the oldest one if too many are on their way.
    pub async fn send(&mut self, batch: SentTransaction) -> Result<(), Refused> {
        while self.sent.len() >= BATCHES_IN_FLIGHT {
            self.take().await?;
        }
        let (client, transaction) = (self.client.clone(), batch.transaction.clone());
        let mut reply: Reply = Box::pin(async move { client.commit(transaction).await });
        // The first poll fixes its place in the session's order.
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
            Err(e) if e.may_have_happened() || e.is_retryable() => self.settle(batch).await,
            Err(e) => Err(refused(&batch, e)),
        }
    }

    /// The connection was lost: later transactions may have failed because this one did. All are completed
    /// before any is repeated, in order.
    async fn settle(&mut self, first: SentTransaction) -> Result<(), Refused> {
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
        insist(|| async {
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
