import react from '@vitejs/plugin-react';
import { defineConfig, type Plugin } from 'vite';

/** React Aria has its few texts in some thirty languages; the console has one. */
const FOREIGN_TEXTS = /[\\/]react-aria[\\/].*[\\/]intl[\\/]\w+[\\/](?!en-US)\w\w-\w\w\.\w+$/;
const oneLanguage: Plugin = {
  name: 'one-language',
  load: { filter: { id: FOREIGN_TEXTS }, handler: () => 'export default undefined' },
};

export default defineConfig({
  root: import.meta.dirname,
  plugins: [react(), oneLanguage],
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
