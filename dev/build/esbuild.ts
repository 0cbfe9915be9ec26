import { readFileSync } from 'node:fs';
import type { Plugin } from 'esbuild';

/** Head of a bundle for Node: its CommonJS parts use `require`, which an ES module lacks. */
export const REQUIRE = `import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);`;

/** What nobody here uses of zod: messages in other languages, a compiler of schemas, schemas from JSON Schema. */
const UNUSED = /\/node_modules\/zod\/v4\/(?:locales\/index|core\/compile|classic\/from-json-schema)\.js$/;

/** Leaves it out. esbuild keeps it, because zod exports itself as one object. */
export const leanZod: Plugin = {
  name: 'lean-zod',
  setup({ onLoad }) {
    onLoad({ filter: UNUSED }, ({ path }) => {
      const exported = readFileSync(path, 'utf8').matchAll(/^export (?:function|const|class) (\w+)/gm);
      const names = [...exported].map(([, name]) => `export const ${name} = undefined;`);
      return { contents: names.join('') || 'export {}' };
    });
  },
};
