// What may be said of the cluster. The headline, the line above the page and the cards all come from here, so
// that they never contradict each other.

import { clock, many } from './dom.js';

// A member that has not answered the leader for this many milliseconds is down.
const SILENT_MS = 1500;

// `down`: how long each member that is down has been silent, in ms; null while that is not known.
export function healthOf({ node, serving, not_serving: reason, disk_hangs: hangs, restore_grace_s: grace, forgotten, raft }) {
  const { leader, term, voters, leaderless_since_ms: since, silent } = raft;
  // A new leader tells of a member when it has had time to hear it.
  const isHeard = (id) => id === leader || silent.some((one) => one.node === id);
  const down = silent && voters.every(isHeard)
    ? new Map(silent.filter((one) => one.for_ms > SILENT_MS).map((one) => [one.node, one.for_ms])) : null;
  const dead = voters.filter((id) => down?.has(id));
  const [up, needed, all] = [voters.length - dead.length, Math.floor(voters.length / 2) + 1, many(voters.length, 'voter')];
  const leads = `Node ${leader} leads in term ${term}. `;
  if (since !== null && since !== undefined) {
    const here = leader === node;
    const lost = `${here ? 'No quorum' : 'No leader'} since ${clock(since)}: `;
    return { down: here ? down : null, lost, bad: true, headline: lost + (here && up < needed
      ? `${up} of ${all} ${up === 1 ? 'answers' : 'answer'}, ${needed} are needed.`
      : `node ${node} reaches no majority of the ${all}.`) + ' Locks cannot change hands.',
    banner: `${lost}what this page shows may be out of date.` };
  }
  const held = !down ? `It has a quorum, so at least ${needed} of ${all} are up; ${silent ? 'it has not heard the others yet' : `only node ${leader} knows which`}.`
    : dead.length === 0 ? `${voters.length === 1 ? 'The only voter answers' : `All ${all} answer`}: ${tolerates(up - needed, '')}`
      : `${up} of ${all} ${up === 1 ? 'answers' : 'answer'}, node ${dead.join(' and node ')} ${dead.length === 1 ? 'does' : 'do'} not: ${tolerates(up - needed, 'further ')}`;
  const why = reason ?? (hangs ? 'its disk does not answer' : 'drained, catching up or stopping (/readyz?verbose says which)');
  const banner = !serving ? `Node ${node} serves no clients: ${why}.` : grace ? `The cluster was restored or lost power: new sessions are refused for another ${grace} s.`
    : forgotten ? `Node ${node} lost unflushed entries about locks with the power: it votes for no usual leader before a leader has sent it all entries.` : '';
  return { down, bad: banner !== '', headline: leads + held, banner };
}

const tolerates = (spare, further) => `the cluster tolerates ${spare > 0 ? `the loss of ${spare}${further && ' more'}` : `no ${further}failure`}.`;
