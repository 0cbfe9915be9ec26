import { useQuery } from '@tanstack/react-query';
import { createFileRoute, Outlet } from '@tanstack/react-router';
import { Loaded } from '../components/feedback.tsx';
import { Page } from '../components/page.tsx';
import { useLiveProject } from '../data/live.ts';
import { branchesQuery, projectQuery } from '../data/resources.ts';
import { TEXT } from '../strings/common.ts';

/** Loads the project before any of its pages. */
export const Route = createFileRoute('/_inside/projects/$projectId')({
  component: ProjectShell,
  codeSplitGroupings: [],
});

function ProjectShell() {
  const { projectId } = Route.useParams();
  const project = useQuery(projectQuery(projectId));
  useQuery(branchesQuery(projectId));
  useLiveProject(project.data === undefined ? null : projectId);
  if (project.data !== undefined) return <Outlet />;
  return (
    <Page title={TEXT.nav.project}>
      <Loaded query={project}>{() => null}</Loaded>
    </Page>
  );
}
