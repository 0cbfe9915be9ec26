import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { ROOT } from '../../dev/build/repository.ts';

/** Runs when the program ends, and prints each change of what its code shares that is still possible. */
const ATTACK = `
  const CHANGES = {
    'a row of an empty list': () => { Array.prototype[0] = 'x'; },
    'a field of each object': () => { Object.prototype.hostile = 'x'; },
    'a method of a list': () => { Array.prototype.map = () => []; },
    'the prototype of a list': () => { Object.setPrototypeOf(Array.prototype, { hostile: 'x' }); },
    'a method of a promise': () => { Promise.prototype.then = () => {}; },
    'a function of JSON': () => { JSON.parse = () => ({}); },
    'the next row of a list': () => { Object.getPrototypeOf([].values()).next = () => ({ done: true }); },
  };
  process.on('exit', () => {
    const made = Object.keys(CHANGES).filter((name) => {
      try {
        CHANGES[name]();
        return true;
      } catch {
        return false;
      }
    });
    process.stderr.write('possible: ' + made.join(', ') + '\\n');
  });`;

const PRELOADED = `data:text/javascript,${encodeURIComponent(ATTACK)}`;

test.each(['agent/main.ts', 'cli/main.ts'])(
  '%s lets nobody change what all of its code shares',
  async (program) => {
    const words = ['--import', PRELOADED, join(ROOT, program), '--version'];
    const { stderr } = await promisify(execFile)(process.execPath, words);
    expect(stderr).toMatch(/^possible: \n$/m);
  },
);
