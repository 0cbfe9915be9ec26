import type { Plugin } from 'esbuild';

/** Head of a bundle for Node: its CommonJS parts use `require`, which an ES module lacks. */
export const REQUIRE = `import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);`;

/**
 * Leaves out zod's messages in languages that nobody uses. esbuild keeps them, because zod exports itself as
 * one object.
 */
export const englishOnly: Plugin = {
  name: 'english-only',
  setup({ onResolve, onLoad }) {
    onResolve({ filter: /\/locales\/index\.js$/ }, ({ importer }) =>
      importer.includes('/node_modules/zod/') ? { path: 'locales', namespace: 'empty' } : null,
    );
    onLoad({ filter: /.*/, namespace: 'empty' }, () => ({ contents: 'export {}' }));
  },
};
