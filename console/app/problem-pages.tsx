import { type ErrorComponentProps, Link, useRouter } from '@tanstack/react-router';
import { ResponseError } from '../../client/response-error.ts';
import { Empty, ErrorNote } from '../components/feedback.tsx';
import { TEXT } from '../strings/common.ts';

export const UnknownPage = () => (
  <main className="page">
    <Empty icon="info" heading="h1" title={TEXT.states.unknownPage}>
      <p>{TEXT.states.unknownPageHint}</p>
      <Link to="/" className="button">
        {TEXT.nav.projects}
      </Link>
    </Empty>
  </main>
);

export function ProblemPage({ error, reset }: ErrorComponentProps) {
  const router = useRouter();
  if (error instanceof ResponseError && error.status === 404) return <UnknownPage />;
  const again = () => {
    reset();
    router.invalidate();
  };
  return (
    <main className="page">
      <div className="inner narrow">
        <h1>{TEXT.states.problem}</h1>
        <ErrorNote error={error} onRetry={again} />
      </div>
    </main>
  );
}
