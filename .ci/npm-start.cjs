#!/usr/bin/env node
'use strict';
// Starts the program of the platform's package, and ends as it ends.
const { spawn } = require('node:child_process');
const { constants } = require('node:os');

const name = `rowlock-${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${name}/bin/rowlock`);
} catch {
  console.error(`rowlock: there is no package ${name}: this platform is not supported, or npm left optional packages out`);
  process.exit(69);
}
// The program becomes this process where node can do that: no process stands between it and its parent.
if (process.execve) {
  try {
    process.execve(program, ['rowlock', ...process.argv.slice(2)], process.env);
  } catch {
    // As a child instead.
  }
}
const child = spawn(program, process.argv.slice(2), { argv0: 'rowlock', stdio: 'inherit' });
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => child.kill(signal));
child.on('error', (error) => {
  console.error(`rowlock: ${program} cannot be started: ${error.message}`);
  process.exit(126);
});
child.on('exit', (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
