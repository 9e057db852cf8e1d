package harness

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NewClaim returns a claim that one node may write to.
func NewClaim(name, class, size string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			},
		},
	}
}

// Claim creates a claim. The changes are applied before.
func (s *Scenario) Claim(name, class, size string, changes ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	s.Helper()
	claim := NewClaim(name, class, size)
	for _, change := range changes {
		change(claim)
	}
	made, err := Client.CoreV1().PersistentVolumeClaims(s.Namespace).Create(s.Context(), claim, metav1.CreateOptions{})
	s.Must(err)
	return made
}

// TheClaim returns a claim as it is now.
func (s *Scenario) TheClaim(name string) *corev1.PersistentVolumeClaim {
	s.Helper()
	claim, err := Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(s.Context(), name, metav1.GetOptions{})
	s.Must(err)
	return claim
}

// Class creates a StorageClass that is deleted after the scenario, and returns its name.
func (s *Scenario) Class(parameters map[string]string, changes ...func(*storagev1.StorageClass)) string {
	s.Helper()
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	class := &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{GenerateName: s.Namespace + "-"},
		Provisioner:       Driver,
		Parameters:        parameters,
		VolumeBindingMode: &wait,
	}
	for _, change := range changes {
		change(class)
	}
	made, err := Client.StorageV1().StorageClasses().Create(s.Context(), class, metav1.CreateOptions{})
	s.Must(err)
	s.Cleanup(func() {
		_ = Client.StorageV1().StorageClasses().Delete(context.Background(), made.Name, metav1.DeleteOptions{})
	})
	return made.Name
}
