//! The calls whose every step fails, or is the last one.

use std::sync::Arc;

use linux::io::IoLimits;
use linux::os::Step;
use linux::quota::Quotas;
use objects::Bytes;
use rootcellar::error::{Code, Operation};
use rootcellar::volume::{
    Allocation, CreateRequest, ExpandRequest, Kind, LimitChanges, UndeleteRequest,
};

use super::fixture::{SIZE, StepFixture};
use support::quota::NoQuotas;
use support::{create, publish};

/// A request about the volume "pvc". There is also a volume "kept".
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Call {
    Create,
    Delete,
    /// In a pool that keeps what is deleted.
    Keep,
    Undelete,
    Expand,
    Label,
    CreateImage,
    ExpandImage,
    PublishImage,
    /// Changes the limit of the writes of a published block volume in a second: before, and afterwards.
    Limit(Option<u64>, Option<u64>),
}

/// Changes of a limit of I/O.
pub const LIMITS: [Call; 3] = [
    Call::Limit(None, Some(500)),
    Call::Limit(Some(500), Some(100)),
    Call::Limit(Some(100), None),
];

pub const CALLS: [Call; 12] = [
    Call::Create,
    Call::Delete,
    Call::Keep,
    Call::Undelete,
    Call::Expand,
    Call::Label,
    Call::CreateImage,
    Call::ExpandImage,
    Call::PublishImage,
    LIMITS[0],
    LIMITS[1],
    LIMITS[2],
];

/// The size of an image with ext4.
const IMAGE_SIZE: u64 = 16 << 20;

impl Call {
    pub fn prepare(self, quotas: Arc<dyn Quotas>) -> StepFixture {
        let mut fixture = StepFixture::new(quotas);
        fixture.keeps = matches!(self, Self::Keep | Self::Undelete);
        fixture.start();
        fixture.make("kept");
        if !self.creates() {
            fixture.driver().create(&self.request()).unwrap();
        }
        if self == Self::Undelete {
            fixture.driver().delete(&fixture.id("pvc")).unwrap();
        }
        self.republish(&fixture);
        if let Self::Limit(..) = self {
            let mut request = publish(&fixture.id("pvc"), &fixture.node.target("pvc"));
            request.capability.block = true;
            fixture.driver().publish(&request).unwrap();
        }
        fixture
    }

    pub fn is_of_an_image(self) -> bool {
        matches!(
            self,
            Self::CreateImage | Self::ExpandImage | Self::PublishImage | Self::Limit(..)
        )
    }

    pub fn creates(self) -> bool {
        matches!(self, Self::Create | Self::CreateImage)
    }

    pub fn expands(self) -> bool {
        matches!(self, Self::Expand | Self::ExpandImage)
    }

    /// The request that creates the volume.
    pub fn request(self) -> CreateRequest {
        let mut request = create("pvc", self.first_size());
        if self.is_of_an_image() {
            request.class.kind = Kind::Image;
        }
        if let Self::Limit(before, _) = self {
            request.class.allocation = Some(Allocation::Thin);
            request.class.io_limits.write_operations = before;
            request.capabilities[0].block = true;
        }
        request
    }

    pub fn first_size(self) -> u64 {
        if self.is_of_an_image() {
            IMAGE_SIZE
        } else {
            SIZE
        }
    }

    /// Publishes the volume that will be expanded, because a new driver must know its target.
    pub fn republish(self, fixture: &StepFixture) {
        if self.expands() {
            let target = fixture.node.target("pvc");
            let request = publish(&fixture.id("pvc"), &target);
            fixture.driver().publish(&request).unwrap();
        }
    }

    pub fn make(self, fixture: &StepFixture) -> Result<(), Code> {
        let id = fixture.id("pvc");
        match self {
            Self::Create | Self::CreateImage => match fixture.driver().create(&self.request()) {
                Ok(volume) => {
                    assert_eq!(volume.id.to_string(), id);
                    Ok(())
                }
                Err(error) => Err(error.code(Operation::CreateVolume)),
            },
            Self::Delete | Self::Keep => match fixture.driver().delete(&id) {
                Err(error) if error.code(Operation::Delete) == Code::Ok => Ok(()),
                outcome => outcome.map_err(|error| error.code(Operation::Delete)),
            },
            Self::Undelete => {
                let request = UndeleteRequest {
                    id: id.clone(),
                    ..UndeleteRequest::default()
                };
                match fixture.driver().undelete(&request) {
                    Ok(returned) => {
                        assert_eq!(returned.id, id);
                        Ok(())
                    }
                    Err(error) => Err(error.code(Operation::Volume)),
                }
            }
            Self::PublishImage => {
                let request = publish(&id, &fixture.node.target("pvc"));
                let published = fixture.driver().publish(&request);
                published.map_err(|error| error.code(Operation::Volume))
            }
            Self::Label => {
                let labelled = fixture.driver().label(&id, "shop", "new");
                labelled
                    .map(drop)
                    .map_err(|error| error.code(Operation::Volume))
            }
            Self::Limit(_, after) => {
                let changes = LimitChanges {
                    write_operations: Some(after.unwrap_or_default()),
                    ..LimitChanges::default()
                };
                let limited = fixture.driver().limit(&id, changes);
                limited
                    .map(|limited| assert_eq!(limited.limits.write_operations, after))
                    .map_err(|error| error.code(Operation::Volume))
            }
            Self::Expand | Self::ExpandImage => {
                let request = ExpandRequest {
                    id,
                    path: fixture.node.target("pvc"),
                    required: Bytes(2 * self.first_size()),
                    limit: None,
                };
                let expanded = fixture.driver().expand(&request);
                expanded
                    .map(|size| assert_eq!(size, request.required))
                    .map_err(|error| error.code(Operation::Expand))
            }
        }
    }

    /// The steps of the call without trouble.
    pub fn steps(self) -> Vec<Step> {
        let fixture = self.prepare(Arc::new(NoQuotas));
        fixture.script.start(None);
        self.make(&fixture).unwrap();
        fixture.script.end()
    }

    pub fn leaves(self) -> &'static [&'static str] {
        match self {
            Self::Delete | Self::Keep => &["kept"],
            _ => &["kept", "pvc"],
        }
    }

    /// Whether the volume is there after this many of the steps.
    pub fn shows(self, made: usize, steps: &[Step]) -> bool {
        match self {
            Self::Create | Self::CreateImage | Self::Undelete => made > visible(steps),
            Self::Delete | Self::Keep => made <= visible(steps),
            Self::Expand
            | Self::ExpandImage
            | Self::Label
            | Self::PublishImage
            | Self::Limit(..) => true,
        }
    }

    /// Asserts the size, claim and limits of a present volume after this many of the steps. An image that is longer than its
    /// record raises the size when the pool is opened.
    pub fn assert_record(self, fixture: &StepFixture, made: usize, steps: &[Step]) {
        let before = self.first_size();
        let size = if self.expands() && made > visible(steps) {
            2 * before
        } else {
            before
        };
        let has = fixture.driver().get(&fixture.id("pvc"));
        let Ok(has) = has.map(|volume| volume.size) else {
            return;
        };
        if self == Self::Label {
            let is_named = fixture.record("pvc")["claim"]["claim"] == "new";
            assert_eq!(is_named, made > visible(steps));
        }
        if let Self::Limit(before, after) = self {
            let expected = if made > visible(steps) { after } else { before };
            assert_limited(fixture, expected);
        }
        let is_raised = self == Self::ExpandImage && has == Bytes(2 * before);
        assert!(has == Bytes(size) || is_raised, "{self:?}: {has}");
    }
}

/// Asserts that the record of the volume has this limit of writes, and the kernel the limits of the record.
#[track_caller]
pub fn assert_limited(fixture: &StepFixture, write_operations: Option<u64>) {
    let recorded = fixture.record("pvc")["io_limits"]["write_operations"].as_u64();
    assert_eq!(recorded, write_operations, "in the record");
    let has: Vec<_> = fixture.cgroups.limits().into_values().collect();
    let limits = write_operations.map(|limit| IoLimits {
        write_operations: Some(limit),
        ..IoLimits::NONE
    });
    assert_eq!(has, limits.into_iter().collect::<Vec<_>>(), "in the kernel");
}

/// The only step that makes a volume appear or disappear, or shows its new size, claim or limits.
pub fn visible(steps: &[Step]) -> usize {
    let renames = steps.iter().filter(|step| **step == Step::Rename);
    assert_eq!(renames.count(), 1, "{steps:?}");
    steps.iter().position(|step| *step == Step::Rename).unwrap()
}
