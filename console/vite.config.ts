import { tanstackRouter } from '@tanstack/router-plugin/vite';
import react from '@vitejs/plugin-react';
import { defineConfig, type Plugin } from 'vite';
import { routes } from './app/routes.ts';

/** React Aria has its few texts in some thirty languages; the console has one. */
const FOREIGN_TEXTS = /[\\/]react-aria[\\/].*[\\/]intl[\\/]\w+[\\/](?!en-US)\w\w-\w\w\.\w+$/;
const oneLanguage: Plugin = {
  name: 'one-language',
  load: { filter: { id: FOREIGN_TEXTS }, handler: () => 'export default undefined' },
};

export default defineConfig({
  root: import.meta.dirname,
  plugins: [
    tanstackRouter({
      target: 'react',
      autoCodeSplitting: true,
      virtualRouteConfig: routes,
      routesDirectory: import.meta.dirname,
      generatedRouteTree: `${import.meta.dirname}/app/route-tree.gen.ts`,
      tmpDir: `${import.meta.dirname}/../node_modules/.cache/routes`,
      addExtensions: true,
      semicolons: true,
      disableLogging: true,
    }),
    react(),
    oneLanguage,
  ],
  build: {
    // The styles use light-dark(), which older targets would have compiled away.
    target: ['chrome123', 'firefox120', 'safari17.5'],
    // Fonts are files, because the content security policy allows no data URLs for them.
    assetsInlineLimit: 0,
    modulePreload: false,
    reportCompressedSize: false,
    emptyOutDir: true,
    manifest: true,
  },
});
