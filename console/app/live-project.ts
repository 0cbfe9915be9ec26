import { createStore } from './store.ts';

/** The project whose changes arrive as events; null while its pages have to poll. */
export const liveProject = createStore<string | null>(null);
