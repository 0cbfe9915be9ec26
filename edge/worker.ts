import { app } from './app.ts';

export { HostLink } from './host-link/host-link.ts';
export { ProjectCoordinator } from './projects/coordinator.ts';

export default { fetch: app.fetch } satisfies ExportedHandler;
