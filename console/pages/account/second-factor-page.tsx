import { createFileRoute, useNavigate } from '@tanstack/react-router';
import { useEffect, useRef, useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { announce, ErrorNote, Note } from '../../components/feedback.tsx';
import { Page } from '../../components/page.tsx';
import { api } from '../../data/gateway.ts';
import { queryClient } from '../../data/query-client.ts';
import { sessionsQuery } from '../../data/resources.ts';
import { enterWithCookie, sessionStore } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import { PasswordField, StepForm } from '../sign-in/form.tsx';
import { RecoveryCodes, SecondFactorForm, SetUp } from '../sign-in/second-factor.tsx';
import { nextStep, type Step, signIn, TITLES } from '../sign-in/steps.ts';

/** The confirmation is a sign-in of its own. Its session takes the place of the one that this page had. */
async function changeSession(): Promise<void> {
  const sessions = await queryClient.fetchQuery({ ...sessionsQuery(), staleTime: 0 });
  const before = sessions.find(({ is_current }) => is_current);
  await enterWithCookie();
  if (!before) return;
  const params = { path: { session_id: before.id } };
  await dataOf(api.DELETE('/api/v1/auth/sessions/{session_id}', { params }));
}

interface StepProps {
  step: Step;
  email: string;
  go: (step: Step) => void;
}

function CurrentStep({ step, email, go }: StepProps) {
  switch (step.name) {
    case 'email':
      return (
        <StepForm
          go={go}
          action="Continue"
          submit={async (value) => nextStep(await signIn.password(email, value('password')))}
        >
          {/* Tells a password manager whose password it is. */}
          <input hidden readOnly autoComplete="username" value={email} />
          <PasswordField label="Current password" />
        </StepForm>
      );
    case 'second_factor':
      return (
        <>
          <Note>You get ten new recovery codes. The earlier ones stop working.</Note>
          <SecondFactorForm
            step={step}
            go={go}
            verify={async (code) => {
              const { recovery_codes: codes } = await signIn.replaceCodes(step.preAuth, code);
              return { name: 'recovery_codes', codes };
            }}
          />
        </>
      );
    case 'set_up':
      return <SetUp preAuth={step.preAuth} go={go} />;
    case 'recovery_codes':
      return <RecoveryCodes codes={step.codes} go={go} />;
    default:
      return <p role="status">One moment</p>;
  }
}

/** Turns on the second factor of the account, or replaces its recovery codes. */
export const Route = createFileRoute('/_inside/account/second-factor')({ component: SecondFactorPage });

function SecondFactorPage() {
  const navigate = useNavigate();
  const session = useStore(sessionStore);
  const [step, setStep] = useState<Step>({ name: 'email' });
  const [error, setError] = useState<unknown>(null);
  const isConfirmed = step.name === 'recovery_codes' || step.name === 'done';
  const change = useRef<Promise<void>>(undefined);
  useEffect(() => {
    if (!isConfirmed) return;
    change.current ??= changeSession();
    change.current.catch(setError);
  }, [isConfirmed]);
  useEffect(() => {
    if (step.name !== 'done') return;
    change.current
      ?.then(() => {
        announce('Your account is protected, and your session continues.');
        return navigate({ to: '/account' });
      })
      .catch(setError);
  }, [step.name, navigate]);
  const me = session.state === 'signed_in' ? session.me : null;
  if (!me) return null;
  return (
    <Page
      title="Second factor"
      about="Turn on a second factor, or get new recovery codes for the one that you have."
      width="narrow"
    >
      {me.issuer === location.origin ? (
        <div className="card padded stack">
          <h2>{step.name === 'email' ? 'Confirm that it is you' : TITLES[step.name]}</h2>
          {error !== null && <ErrorNote error={error} />}
          <CurrentStep step={step} email={me.email ?? ''} go={setStep} />
        </div>
      ) : (
        <Note>The identity provider {me.issuer} manages your password and your sessions.</Note>
      )}
    </Page>
  );
}
