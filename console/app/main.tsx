import '../styles/fonts.css';
import '../styles/tokens.css';
import '../styles/base.css';
import '../styles/controls.css';
import '../styles/components.css';
import '../styles/layout.css';
import { QueryClientProvider } from '@tanstack/react-query';
import { createRouter, RouterProvider } from '@tanstack/react-router';
import { StrictMode } from 'react';
import { createRoot } from 'react-dom/client';
import { Loading } from '../components/feedback.tsx';
import { queryClient } from '../data/query-client.ts';
import { applyTheme } from '../data/theme.ts';
import { ProblemPage } from './problem-pages.tsx';
import { routeTree } from './route-tree.gen.ts';

const router = createRouter({
  routeTree,
  defaultPreload: 'intent',
  defaultPendingComponent: Loading,
  defaultErrorComponent: ProblemPage,
  scrollRestoration: true,
});

declare module '@tanstack/react-router' {
  interface Register {
    router: typeof router;
  }
}

const root = document.getElementById('root');
if (!root) throw new Error('the page has no root element');
applyTheme();
// The files of this page are gone when another version of the console was deployed.
addEventListener('vite:preloadError', () => location.reload());
createRoot(root).render(
  <StrictMode>
    <QueryClientProvider client={queryClient}>
      <RouterProvider router={router} />
    </QueryClientProvider>
  </StrictMode>,
);
