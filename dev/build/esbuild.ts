import { readFileSync } from 'node:fs';
import type { Plugin } from 'esbuild';

/** Head of a bundle for Node: its CommonJS parts use `require`, which an ES module lacks. */
export const REQUIRE = `import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);`;

/** What nobody here uses of zod: messages in other languages, a compiler of schemas, schemas from JSON Schema. */
const UNUSED = /\/node_modules\/zod\/v4\/(?:locales\/index|core\/compile|classic\/from-json-schema)\.js$/;

/** The protocol's package checks with it what a person enters into a form, which no tool here asks for. */
const VALIDATOR = /\/@modelcontextprotocol\/server\/dist\/cfWorkerProvider-[^/]+\.mjs$/;

/** Leaves both out. esbuild keeps them: zod exports itself as one object, and each server makes a validator. */
export const leaveOutUnused: Plugin = {
  name: 'leave-out-unused',
  setup({ onLoad }) {
    onLoad({ filter: VALIDATOR }, () => ({ contents: 'export class t {}' }));
    onLoad({ filter: UNUSED }, ({ path }) => {
      const exported = readFileSync(path, 'utf8').matchAll(/^export (?:function|const|class) (\w+)/gm);
      const names = [...exported].map(([, name]) => `export const ${name} = undefined;`);
      return { contents: names.join('') || 'export {}' };
    });
  },
};
